import assert from 'node:assert/strict';
import test from 'node:test';
import { isLong, pause } from './pace';

const DIFF = 'v1/versions/a/diff?from=b&stats=true';

test('what never changes is asked for once', () => {
  for (const path of [DIFF, 'v1/plans/p/labels?epoch=0', 'v1/runs/r/records/x/summary']) assert.equal(pause(path, 15_000, 0), undefined, path);
  for (const path of ['v1/overview', 'v1/plans?version=a', 'v1/runs/r/records']) assert.equal(pause(path, 5000, 0), 5000, path);
});

test('after failures a comparison is asked for less and less often, and nothing again whose question is wrong', () => {
  assert.deepEqual([1, 2, 3, 4, 5, 6, 60].map((failures) => pause(DIFF, 15_000, failures, 429)), [15_000, 30_000, 60_000, 120_000, 240_000, 300_000, 300_000]);
  assert.equal(pause(DIFF, 15_000, 2), 30_000, 'no answer');
  assert.deepEqual([400, 422].map((status) => pause(DIFF, 15_000, 1, status)), [undefined, undefined]);
  assert.equal(pause('v1/overview', 5000, 9, 503), 5000, 'a page about the present asks on');
  assert.equal(pause('v1/runs/r/records/x/steps/1/losses', 5000, 9, 404), 5000, 'they may be saved at any time');
});

test('a page waits for a comparison', () => {
  assert.ok(isLong(DIFF) && !isLong('v1/versions/a/summary') && !isLong('v1/overview'));
});
