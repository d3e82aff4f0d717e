import assert from 'node:assert/strict';
import test from 'node:test';
import { auditRows, hiddenShare, ranges } from './tables';

test('ranks are listed in ranges', () => {
  assert.equal(ranges([8, 0, 1, 2, 3]), '0 to 3, 8');
  assert.equal(ranges([4, 5]), '4, 5');
  assert.equal(ranges([]), '');
});

test('reports are added up by epoch and world, the newest first', () => {
  const report = (epoch: number, rank: number, world: number) => ({ epoch, rank, world, samples: 10, digest_sum: '' });
  assert.deepEqual(auditRows([report(0, 0, 2), report(0, 1, 2), report(1, 0, 2), report(1, 0, 4)]), [
    { epoch: 1, world: 4, ranks: 1, samples: 10 },
    { epoch: 1, world: 2, ranks: 1, samples: 10 },
    { epoch: 0, world: 2, ranks: 2, samples: 20 },
  ]);
});

test('the hidden part of an exchange is that of a node', () => {
  const none = { expected_grains: 0, received_grains: 0, received_bytes: 0, sent_grains: 0, sent_bytes: 0, unsent_grains: 0, sending_micros: 0, waited_micros: 0 };
  assert.equal(hiddenShare(none), undefined);
  assert.equal(hiddenShare({ ...none, sending_micros: 100, waited_micros: 3 }), 0.97);
});
