import assert from 'node:assert/strict';
import test from 'node:test';
import { distance, shade } from './mixing';

test('the distance from a full shuffle goes from one to zero', () => {
  assert.deepEqual([distance(1, 16), distance(1 / 16, 16), distance(0.01, 16), distance(1, 1)], [1, 0, 0, 0]);
  assert.ok(Math.abs(distance(0.53125, 16) - 0.5) < 1e-12);
});

test('no share is light, an even one has the middle colour, and all is dark', () => {
  const pixels = shade([[0, 1], [0.5, 0.5]]);
  assert.deepEqual([...pixels], [247, 247, 245, 255, 16, 24, 48, 255, 91, 140, 200, 255, 91, 140, 200, 255]);
  assert.deepEqual([...shade([[Number.NaN]])].length, 4);
  assert.equal(shade([]).length, 0);
});
