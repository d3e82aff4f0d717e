import assert from 'node:assert/strict';
import test from 'node:test';
import type { NodeSeries } from './api/types';
import { downsample, find, greatest, mean, onGrid, runLines, sum, summary, times } from './series';

test('fewer points are means of neighbours, and a gap stays one', () => {
  assert.deepEqual(downsample([1, 3, null, 5, null, null, 7], 4), [2, 5, null, 7]);
  assert.deepEqual(downsample([1, 2], 4), [1, 2]);
  assert.deepEqual(downsample([], 4), []);
  const long = Array.from({ length: 1000 }, (_, at) => at);
  for (const most of [1, 7, 120, 999]) assert.ok(downsample(long, most).length <= most);
});

test('a series on the grid of another clock keeps its values and its end', () => {
  const grid = [100, 110, 120, 130];
  assert.deepEqual(onGrid([1, 2, 3, 4], 130, 10, grid), [1, 2, 3, 4]);
  // A clock that is three seconds late, and one that is two early.
  assert.deepEqual(onGrid([1, 2, 3, 4], 127, 10, grid), [1, 2, 3, 4]);
  assert.deepEqual(onGrid([3, 4], 132, 10, grid), [null, null, null, 3.5]);
  // Twice as many points, and fewer of them.
  assert.deepEqual(onGrid([1, 3, 5, 7], 130, 5, grid), [null, null, 2, 6]);
  assert.deepEqual(onGrid([null, 4], 130, 10, grid), [null, null, null, 4]);
  assert.deepEqual(onGrid([], 130, 10, grid), [null, null, null, null]);
});

test('sums and greatest values leave gaps where no series has a value', () => {
  assert.deepEqual(sum([[1, null, null], [2, 3, null]]), [3, 3, null]);
  assert.deepEqual(greatest([[1, null, 9], [2, 3, 4]]), [2, 3, 9]);
  assert.deepEqual(mean([[1, null, null], [3, 5, null]]), [2, 5, null]);
  assert.deepEqual(sum([]), []);
});

const series = (name: string, labels: Record<string, string>, points: (number | null)[]) => ({ name, labels, points });
const waits = (run: string, rank: number, stage: string, points: (number | null)[]) => series('rank_wait_share', { run, rank: String(rank), stage }, points);
const samples = (run: string, rank: number, points: (number | null)[]) => series('rank_samples_per_second', { run, rank: String(rank) }, points);

test('the lines of a run add up its ranks, and follow the one that waits most', () => {
  const nodes: NodeSeries[] = [
    { node: 'n1', every_s: 10, end: 100, series: [samples('r', 0, [10, 20]), waits('r', 0, 'disk', [0.1, 0.1]), waits('r', 0, 'network', [0.1, 0.2])] },
    // Rank 0 reports here, too, and counts once.
    { node: 'n2', every_s: 10, end: 100, series: [samples('r', 1, [5, 5]), waits('r', 1, 'disk', [0.4, 0.1]), samples('r', 0, [10, 20]), { name: 'process_processors', points: [1, 1] }] },
  ];
  const { times: at, runs } = runLines(nodes);
  assert.deepEqual(at, [90, 100]);
  assert.equal(runs.length, 1);
  assert.deepEqual(runs[0]?.samples, [15, 25]);
  assert.deepEqual(runs[0]?.ofRank, [7.5, 12.5]);
  assert.deepEqual(runs[0]?.exposed.map((value) => Number(value?.toFixed(3))), [0.4, 0.3]);
  assert.deepEqual(runs[0]?.ranks.map((rank) => rank.rank), [0, 1]);
});

test('labels from elsewhere are names and nothing else', () => {
  const { runs } = runLines([{ node: 'n', every_s: 5, end: 10, series: [samples('__proto__', 0, [1]), samples('constructor', 0, [2]), { name: 'rank_samples_per_second', points: [1] }] }]);
  assert.deepEqual(runs.map((run) => run.run), ['__proto__', 'constructor']);
  assert.deepEqual(runLines([]), { times: [], runs: [] });
});

test('a series is found by its name and labels, its times by the end', () => {
  const of: NodeSeries = { node: 'n', every_s: 30, end: 1000, series: [series('a', { from: 'x' }, [1, 2, 3]), series('a', { from: 'y' }, [4, 5, 6])] };
  assert.deepEqual(times(of), [940, 970, 1000]);
  assert.deepEqual(find(of, 'a', { from: 'y' })?.points, [4, 5, 6]);
  assert.equal(find(of, 'b'), undefined);
  assert.deepEqual(summary([null, 3, 1, 2]), { last: 2, least: 1, most: 3 });
  assert.deepEqual(summary([null]), { last: null, least: null, most: null });
});
