import assert from 'node:assert/strict';
import test from 'node:test';
import type { CoursePoint } from './api/types';
import { overlay, pointAt } from './steps';

const point = (step: number, loss: number | null): CoursePoint => ({ step, steps: 10, epoch: 0, loss, loss_min: loss, loss_max: loss, step_of_max: step + 3, accuracy: 0, learning_rate: 0.1, gradient_norm: 1, skipped: 0 });

test('two courses share the steps of both', () => {
  const { steps, own, theirs } = overlay([point(0, 3), point(10, 2)], [point(0, 5), point(7, null), point(14, 4)]);
  assert.deepEqual(steps, [0, 7, 10, 14]);
  assert.deepEqual(own((one) => one.loss), [3, undefined, 2, undefined]);
  assert.deepEqual(theirs((one) => one.loss), [5, null, undefined, 4]);
});

test('a step belongs to the point that begins before it', () => {
  const points = [point(10, 3), point(20, 2)];
  assert.deepEqual([5, 10, 19, 20, 99].map((step) => pointAt(points, step)?.step), [10, 10, 10, 20, 20]);
  assert.equal(pointAt([], 3), undefined);
});
