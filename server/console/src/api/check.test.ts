import assert from 'node:assert/strict';
import test from 'node:test';
import { checked } from './check';

const good = {
  nodes: {},
  totals: {},
  runs: [{ run: 'a', readers: [{ wait_shares: {} }], exchange: {} }],
  findings: [{ title: 't', cause: 'c', remedy: 'r', kind: 'k', severity: 'info' }],
};

test('an overview of another form is refused', () => {
  assert.equal(checked(good), good);
  const bad = [
    undefined, null, [], 'x', {}, { ...good, nodes: null }, { ...good, totals: [] }, { ...good, runs: {} }, { ...good, findings: 'none' }, { ...good, runs: [null] },
    { ...good, runs: [{ ...good.runs[0], readers: null }] }, { ...good, runs: [{ ...good.runs[0], readers: [{}] }] }, { ...good, runs: [{ ...good.runs[0], waits: 3 }] },
    { ...good, findings: [{ ...good.findings[0], title: {} }] },
  ];
  for (const one of bad) assert.throws(() => checked(one), /overview/);
});
