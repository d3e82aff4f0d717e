// The lines of the journal: changes that a node announces, and differences between two overviews. Pure.

import type { Change, Finding, Overview } from './api/types';
import { cut, sentence, visible } from './text';

export type Mark = 'good' | 'info' | 'warning' | 'critical';

export interface Entry {
  /** Seconds since 1970, by the clock of this browser. */
  at: number;
  mark: Mark;
  text: string;
  /** Of lines of one group within a minute the newest stays. */
  group?: string;
  /** How many lines with the same text it stands for. */
  times?: number;
}

export type Line = Omit<Entry, 'at'>;

/** More lines than this of one moment are counted, not listed. */
const MOST_AT_ONCE = 20;
/** Lines of one group within this time are one, in seconds. */
const TOGETHER = 60;

const named = (name: string): string => cut(visible(name), 60);

/** The line of an event of `/v1/events`. */
export function ofChange(change: Change): Line {
  return { ...described(change), group: JSON.stringify([change.kind, change.name, change.removed]) };
}

function described(change: Change): Line {
  const name = named(change.name);
  const { removed } = change;
  switch (change.kind) {
    case 'node':
      return { mark: removed ? 'warning' : 'info', text: removed ? `Node ${name} left, or its lease ended` : `Node ${name} registered` };
    case 'run':
      return { mark: 'info', text: removed ? `Run ${name} was removed` : `Run ${name} changed` };
    case 'placement':
      return { mark: 'info', text: removed ? `The placement of run ${name} ended` : `Partitions of run ${name} have new hosts` };
    case 'dataset':
      return { mark: 'info', text: removed ? `Dataset ${name} was removed` : `Dataset ${name} has a new version` };
    case 'tag':
      return { mark: 'info', text: removed ? `Tag ${name} was removed` : `Tag ${name} was set` };
    case 'plan':
      return { mark: 'info', text: removed ? `Plan ${named(change.name.slice(0, 12))} left the list` : `Plan ${named(change.name.slice(0, 12))} was stored` };
    case 'health': {
      const [node = '', by = ''] = change.name.split('/');
      return removed
        ? { mark: 'good', text: `Node ${named(by)} has no more complaint about node ${named(node)}` }
        : { mark: 'warning', text: `Node ${named(by)} reports a fault of node ${named(node)}` };
    }
    default:
      return { mark: 'info', text: `${sentence(named(change.kind))} ${name} ${removed ? 'is gone' : 'changed'}` };
  }
}

function key(finding: Finding): string {
  return JSON.stringify([finding.kind, finding.node, finding.run, finding.rank, finding.title]);
}

/** The lines between two overviews: findings that appeared or ended, epochs and runs that began or ended. */
export function between(before: Overview, after: Overview): Line[] {
  const lines: Line[] = [];
  const [old, present] = [before, after].map((view) => new Map(view.findings.map((one) => [key(one), one])));
  for (const [id, finding] of present ?? []) {
    if (!old?.has(id)) lines.push({ mark: finding.severity, text: sentence(cut(visible(finding.title), 120)) });
  }
  for (const [id, finding] of old ?? []) {
    if (!present?.has(id)) lines.push({ mark: 'good', text: `Over: ${cut(visible(finding.title), 120)}` });
  }
  const runs = new Map(before.runs.map((run) => [run.run, run]));
  for (const run of after.runs) {
    const was = runs.get(run.run);
    runs.delete(run.run);
    if (!was) lines.push({ mark: 'info', text: `Ranks read run ${named(run.run)}` });
    else if (run.epoch > was.epoch) lines.push({ mark: 'info', text: `Epoch ${run.epoch} of run ${named(run.run)} began`, group: `epoch of ${run.run}` });
  }
  for (const run of runs.keys()) lines.push({ mark: 'info', text: `No rank reads run ${named(run)} any more` });
  return bounded(lines);
}

/** The entries with new lines before them, the newest first, at most `most`. */
export function added(entries: Entry[], lines: Line[], at: number, most: number): Entry[] {
  let all = entries;
  for (const line of lines) {
    const same = line.group === undefined ? undefined : all.find((entry) => entry.group === line.group && at - entry.at < TOGETHER);
    const times = same?.text === line.text ? { times: (same.times ?? 1) + 1 } : {};
    all = [{ ...line, ...times, at }, ...all.filter((entry) => entry !== same)];
  }
  return all.slice(0, most);
}

export function bounded(lines: Line[]): Line[] {
  if (lines.length <= MOST_AT_ONCE) return lines;
  const rest = lines.length - MOST_AT_ONCE + 1;
  return [...lines.slice(0, MOST_AT_ONCE - 1), { mark: 'info', text: `${rest} more changes at the same time` }];
}
