// Series of several nodes on one axis of time. Pure.

import type { NodeSeries, Series } from './api/types';

/** `null` is a gap. */
export type Points = (number | null)[];

/** The values of a series at the times of a grid: the mean of its points in each step that ends there. */
export function onGrid(points: Points, end: number, every: number, grid: number[]): Points {
  const step = grid.length > 1 ? (grid[1] as number) - (grid[0] as number) : every;
  const first = (grid[0] ?? 0) - step;
  const sums = grid.map(() => 0);
  const counts = grid.map(() => 0);
  points.forEach((value, at) => {
    if (typeof value !== 'number' || !Number.isFinite(value)) return;
    const time = end - (points.length - 1 - at) * every;
    // The clocks of nodes differ by less than a step.
    const cell = Math.min(grid.length - 1, Math.ceil((time - first) / step - 1e-9) - 1);
    if (cell < 0 || time > (grid.at(-1) ?? 0) + step) return;
    sums[cell] = (sums[cell] ?? 0) + value;
    counts[cell] = (counts[cell] ?? 0) + 1;
  });
  return counts.map((count, at) => (count === 0 ? null : (sums[at] ?? 0) / count));
}

/** At most `most` points: the means of neighbours. */
export function downsample(points: Points, most: number): Points {
  const size = Math.ceil(points.length / Math.max(1, most));
  if (size <= 1) return points;
  const groups: Points = [];
  for (let at = 0; at < points.length; at += size) {
    const values = points.slice(at, at + size).filter((value): value is number => value !== null);
    groups.push(values.length === 0 ? null : values.reduce((sum, value) => sum + value, 0) / values.length);
  }
  return groups;
}

/** The sum of series at each time, of those that have a value there. */
export function sum(all: Points[]): Points {
  return combine(all, (one, other) => one + other);
}

/** The greatest of series at each time. */
export function greatest(all: Points[]): Points {
  return combine(all, Math.max);
}

/** The mean of series at each time, over those that have a value there. */
export function mean(all: Points[]): Points {
  const counts = (all[0] ?? []).map((_, at) => all.filter((points) => (points[at] ?? null) !== null).length);
  return sum(all).map((value, at) => (value === null ? null : value / (counts[at] ?? 1)));
}

function combine(all: Points[], both: (one: number, other: number) => number): Points {
  const [first = [], ...others] = all;
  return first.map((value, at) => {
    let result = value;
    for (const other of others) {
      const more = other[at] ?? null;
      if (more !== null) result = result === null ? more : both(result, more);
    }
    return result;
  });
}

/** The times of the points of a node's series, in seconds. */
export function times(of: NodeSeries): number[] {
  const length = Math.max(0, ...list(of.series).map((series) => list(series.points).length));
  return Array.from({ length }, (_, at) => of.end - (length - 1 - at) * of.every_s);
}

/** One series of a node by name and labels. */
export function find(of: NodeSeries, name: string, labels: Record<string, string> = {}): Series | undefined {
  return list(of.series).find(
    (series) => series.name === name && Object.entries(labels).every(([label, value]) => series.labels?.[label] === value),
  );
}

export interface RankLines {
  rank: number;
  samples: Points;
  /** The part of its time that it waits, over all stages. */
  exposed: Points;
}

export interface RunLines {
  run: string;
  samples: Points;
  /** The mean of a rank. */
  ofRank: Points;
  /** Of the rank that waits most. */
  exposed: Points;
  ranks: RankLines[];
}

/** What ranks did over the last hour, by run, from the series of the nodes that they report to. */
export function runLines(nodes: NodeSeries[]): { times: number[]; runs: RunLines[] } {
  const end = Math.max(0, ...nodes.map((node) => node.end));
  const every = Math.max(1, ...nodes.map((node) => node.every_s));
  const length = Math.max(0, ...nodes.map((node) => times(node).length));
  const grid = Array.from({ length }, (_, at) => end - (length - 1 - at) * every);
  // By run, rank and stage; a rank that reports to several nodes counts once.
  const found = new Map<string, Map<number, { samples: Points[]; stages: Map<string, Points[]> }>>();
  for (const node of nodes) {
    for (const { name, labels, points } of list(node.series)) {
      const [run, rank, stage] = [labels?.['run'], Number(labels?.['rank']), labels?.['stage']];
      if (run === undefined || !Number.isInteger(rank)) continue;
      const ranks = found.get(run) ?? new Map<number, { samples: Points[]; stages: Map<string, Points[]> }>();
      found.set(run, ranks);
      const lines = ranks.get(rank) ?? { samples: [], stages: new Map<string, Points[]>() };
      ranks.set(rank, lines);
      const placed = onGrid(list(points), node.end, node.every_s, grid);
      if (name === 'rank_samples_per_second') lines.samples.push(placed);
      if (name === 'rank_wait_share' && stage !== undefined) {
        lines.stages.set(stage, [...(lines.stages.get(stage) ?? []), placed]);
      }
    }
  }
  const runs = [...found].map(([run, ranks]) => {
    const lines = [...ranks]
      .sort(([one], [other]) => one - other)
      .map(([rank, { samples, stages }]) => ({
        rank,
        samples: greatest(samples),
        exposed: sum([...stages.values()].map(greatest)),
      }));
    const samples = lines.map((rank) => rank.samples).filter((points) => points.length > 0);
    return {
      run,
      samples: sum(samples),
      ofRank: mean(samples),
      exposed: greatest(lines.map((rank) => rank.exposed).filter((points) => points.length > 0)),
      ranks: lines,
    };
  });
  runs.sort((one, other) => (one.run < other.run ? -1 : 1));
  return { times: grid, runs };
}

export interface Summary {
  last: number | null;
  least: number | null;
  most: number | null;
}

export function summary(points: (number | null | undefined)[]): Summary {
  const values = points.filter((value): value is number => typeof value === 'number');
  if (values.length === 0) return { last: null, least: null, most: null };
  // Where the line has no point of its own, the one before counts.
  return { last: points.findLast((value) => value !== undefined) ?? null, least: Math.min(...values), most: Math.max(...values) };
}

function list<T>(value: T[] | undefined): T[] {
  return Array.isArray(value) ? value : [];
}
