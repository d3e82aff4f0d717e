import assert from 'node:assert/strict';
import test from 'node:test';
import { distance, shade, sharesOf, shownOf } from './mixing';

test('the distance from a full shuffle goes from one to zero', () => {
  assert.deepEqual([distance(1, 16), distance(1 / 16, 16), distance(0.01, 16), distance(1, 1)], [1, 0, 0, 0]);
  assert.ok(Math.abs(distance(0.53125, 16) - 0.5) < 1e-12);
});

test('no share is light, an even one has the middle colour, and all is dark', () => {
  const pixels = shade([[0, 1], [0.5, 0.5]], [0.5, 0.5]);
  assert.deepEqual([...pixels], [247, 247, 245, 255, 16, 24, 48, 255, 91, 140, 200, 255, 91, 140, 200, 255]);
  assert.deepEqual([...shade([[Number.NaN]], [1])].length, 4);
  assert.equal(shade([], []).length, 0);
});

test('a row is as wide as its partitions, and the share of the version has the middle colour', () => {
  const pixels = shade([[0.2, 0, 1]], [0.2]);
  assert.deepEqual([...pixels], [91, 140, 200, 255, 247, 247, 245, 255, 16, 24, 48, 255]);
});

test('shares of labels add up to one, and a partition without labels has none', () => {
  assert.deepEqual(sharesOf({ counts: [6, 3], others: 3 }), [0.5, 0.25, 0.25]);
  assert.deepEqual(sharesOf({ counts: [0], others: 0 }), [0, 0]);
});

test('shown partitions are those of the answer, whatever the address wants next', () => {
  assert.deepEqual(shownOf([{ partition: 0 }, { partition: 1 }, { partition: 63 }], 64), [0, 63]);
  assert.deepEqual(shownOf([], 64), [64, 64]);
});
