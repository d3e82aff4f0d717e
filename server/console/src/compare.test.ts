import assert from 'node:assert/strict';
import test from 'node:test';
import { changeOf, counted, points, withoutSamples } from './compare';

test('changes are counted, and what did not change is left out', () => {
  assert.equal(counted({ kept: 7000, added: 3, removed: 0 }), '7,000 in both, 3 added');
  assert.equal(counted({ kept: 0, added: 0, removed: 2 }), '0 in both, 2 removed');
});

test('a change of a share has its sign', () => {
  assert.deepEqual([0.024, -0.1, 0.0001, -0.0001].map(points), ['+2.4\u00a0points', '-10.0\u00a0points', '0', '0']);
});

test('each change of a column is in words', () => {
  assert.deepEqual(changeOf({ change: 'type', column: 'x', from: 'Int32', to: 'Int64' }), ['x', 'another type', 'Int64 instead of Int32']);
  assert.deepEqual(changeOf({ change: 'metadata', column: 'label', key: 'classes', from: null, to: '[]' }), ['label', 'classes', '[] instead of nothing']);
  assert.deepEqual(changeOf({ change: 'order', from: ['a', 'b'], to: ['b', 'a'] })[2], 'b, a instead of a, b');
});

test('what was too much to compare has its reason', () => {
  assert.match(withoutSamples('rows'), /too many samples/);
  assert.match(withoutSamples('shards'), /Too many shards/);
  assert.match(withoutSamples('time'), /too long/);
  assert.equal(withoutSamples(undefined), withoutSamples('rows'));
});
