import assert from 'node:assert/strict';
import test from 'node:test';
import type { Finding, Overview, RunOverview } from './api/types';
import { short } from './findings';
import { added, between, bounded, ofChange } from './journal';
import { epochShare, verdict } from './verdict';

const NOW = Date.UTC(2026, 10, 28, 11, 30) / 1000;
const plain = (text: string): string => text.replaceAll('\u00a0', ' ');

function run(name: string, more: Partial<RunOverview> = {}): RunOverview {
  return {
    run: name,
    ranks: 4,
    epoch: 5,
    position: 620,
    epoch_samples: 1000,
    epoch_ends: { in_s: 840, earliest_s: 720, latest_s: 1020 },
    readers: [],
    exchange: { waiting_bytes: 0, paused_nodes: 0, unsent_grains: 0 },
    waits: { exposed_share: 0.01, stage: 'disk', rank: 0, node: 'n1', is_straggler: false },
    ...more,
  };
}

const WAITS = { exposed_share: 0.41, stage: 'disk' as const, rank: 3, node: 'n2', since: Date.UTC(2026, 10, 28, 11, 4) / 1000, is_straggler: true };

function overview(runs: RunOverview[], findings: Finding[] = []): Overview {
  return {
    node: 'n1', release: '0.1.0', at: NOW, runs, findings,
    nodes: { live: 4, lost: 0, draining: 0, unhealthy: 0, unanswered: 0 },
    totals: { cache_used_bytes: 0, cache_limit_bytes: 0, origin_bytes: 0, exchange_bytes: 0, corrupt_grains: 0 },
  };
}

const says = (runs: RunOverview[]): string => plain(verdict(overview(runs), NOW).text);

test('the verdict names stage, share, rank, node, time and end', () => {
  assert.equal(says([run('a', { waits: WAITS })]), 'Training waits for its disk 41 % of the time, rank 3 on n2, since 12:04; epoch 5 done in 14 min (12 to 17)');
  assert.equal(says([run('a', { waits: WAITS }), run('b', { waits: WAITS }), run('c')]), 'Training of a waits for its disk 41 % of the time, rank 3 on n2, since 12:04; epoch 5 done in 14 min (12 to 17); 1 other run waits, too');
});

test('training that waits for less than a twentieth of its time is not held up', () => {
  assert.equal(says([run('a')]), 'Training is not held up by data; epoch 5 done in 14 min (12 to 17)');
  assert.equal(says([run('a'), run('b')]), 'Training is not held up by data; 2 runs are being read');
  assert.equal(says([run('a', { waits: { ...WAITS, exposed_share: 0.05 } })]), 'Training is not held up by data; epoch 5 done in 14 min (12 to 17)');
});

test('without a run, a report or a forecast the verdict claims nothing', () => {
  assert.equal(says([]), 'No run is being read');
  const { waits: _, epoch_ends: __, ...silent } = run('a');
  assert.equal(says([silent]), 'Training runs, and no rank reports its waiting time; epoch 5 is 62 % done');
  assert.equal(says([silent, run('b')]), 'Training is not held up by data; 2 runs are being read; 1 run reports no waiting time');
  assert.equal(says([silent, silent]), 'Training runs, and no rank reports its waiting time; 2 runs are being read');
  assert.match(says([silent, run('b', { waits: WAITS })]), /^Training of b waits for its disk 41 % .*; 1 run reports no waiting time$/);
  assert.equal(epochShare({ position: 3, epoch_samples: 0 }), 0);
  assert.equal(epochShare({ position: 30, epoch_samples: 3 }), 1);
});

const finding = (kind: string, node: string, more: Partial<Finding> = {}): Finding => ({ severity: 'warning', kind, node, title: `${kind} of ${node}`, cause: '', remedy: '', ...more });

test('a fault of many nodes hides no other in the short list', () => {
  const all = [...Array.from({ length: 40 }, (_, at) => finding('certificate_expiry', `n${at}`)), finding('slow_disk', 'n7')];
  const listed = short(all, 6, 2);
  assert.deepEqual(listed.map(({ finding: { kind, node }, more }) => [kind, node, more]), [['certificate_expiry', 'n0', 0], ['certificate_expiry', 'n1', 38], ['slow_disk', 'n7', 0]]);
  assert.equal(short(Array.from({ length: 9 }, (_, at) => finding(`k${at}`, 'n')), 6, 2).length, 6);
});

test('the journal notes findings that begin and end, and epochs', () => {
  const before = overview([run('a'), run('gone')], [finding('slow_disk', 'n1')]);
  const after = overview([run('a', { epoch: 6 }), run('new')], [finding('node_lost', 'n2', { severity: 'critical' })]);
  assert.deepEqual(between(before, after), [
    { mark: 'critical', text: 'Node_lost of n2' },
    { mark: 'good', text: 'Over: slow_disk of n1' },
    { mark: 'info', text: 'Epoch 6 of run a began', group: 'epoch of a' },
    { mark: 'info', text: 'Ranks read run new' },
    { mark: 'info', text: 'No rank reads run gone any more' },
  ]);
  assert.deepEqual(between(before, before), []);
});

test('short epochs share one line, and the journal has an end', () => {
  const line = (text: string, group?: string) => ({ mark: 'info' as const, text, ...(group === undefined ? {} : { group }) });
  const texts = (entries: { text: string }[]): string[] => entries.map(({ text }) => text);
  const first = added([], [line('epoch 1', 'a'), line('other'), line('epoch 2', 'a')], 10, 9);
  assert.deepEqual(texts(first), ['epoch 2', 'other']);
  const next = added(first, [line('epoch 3', 'a'), line('epoch 4', 'a')], 20, 9);
  assert.deepEqual(texts(next), ['epoch 4', 'other']);
  assert.deepEqual(texts(added(next, [line('x')], 30, 2)), ['x', 'epoch 4']);
  // After a minute the group begins again; the same text is counted.
  assert.deepEqual(texts(added(next, [line('epoch 5', 'a')], 90, 9)), ['epoch 5', 'epoch 4', 'other']);
  const placed = added(added([], [line('moved', 'p'), line('moved', 'q')], 10, 9), [line('moved', 'p'), line('moved', 'p')], 11, 9);
  assert.deepEqual(placed.map(({ group, times }) => [group, times]), [['p', 3], ['q', undefined]]);
});

test('a flood of changes is counted', () => {
  const lines = bounded(Array.from({ length: 500 }, (_, at) => ({ mark: 'info' as const, text: String(at) })));
  assert.equal(lines.length, 20);
  assert.equal(lines.at(-1)?.text, '481 more changes at the same time');
});

test('events have a line each, and their names are text', () => {
  const line = (kind: string, name: string, removed = false): string => ofChange({ kind, name, removed, revision: 1 }).text;
  assert.equal(line('node', 'n3', true), 'Node n3 left, or its lease ended');
  assert.equal(line('health', 'n2/n1'), 'Node n1 reports a fault of node n2');
  assert.equal(line('tag', 'a\u202e'), 'Tag a\\u{202e} was set');
  assert.equal(line('constructor', 'x'), 'Constructor x changed');
});
