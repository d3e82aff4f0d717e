// The sentence at the top of the overview: whether training waits for data, and when it will be done. Pure.

import { EXPOSED, type Overview, type RunOverview, type Stage } from './api/types';
import { clock, forecast, plural, wholePercent } from './format';
import { cut, visible } from './text';

export type Tone = 'good' | 'bad' | 'unknown' | 'idle';

export interface Verdict {
  tone: Tone;
  /** The whole answer. */
  text: string;
  /** The same for the title of a tab. */
  brief: string;
}

const NOUNS: Record<Stage, string> = {
  network: 'the network',
  disk: 'its disk',
  decode: 'decoding',
  transform: 'transforms',
  python: 'Python code',
};

export function noun(stage: Stage | undefined): string {
  return (stage && NOUNS[stage]) ?? 'data';
}

export function verdict(overview: Overview, now = Date.now() / 1000): Verdict {
  const { runs } = overview;
  if (runs.length === 0) return { tone: 'idle', text: 'No run is being read', brief: 'no run' };
  const heard = runs.filter((run) => run.waits !== undefined);
  const waiting = heard.filter((run) => exposed(run) > EXPOSED);
  const silent = runs.length - heard.length;
  const reports = silent === 0 ? '' : `; ${plural(silent, 'run reports', 'runs report')} no waiting time`;
  const [worst] = waiting;
  if (worst?.waits) {
    const { waits } = worst;
    const since = waits.since === undefined ? '' : `, since ${clock(waits.since, now)}`;
    const of = runs.length === 1 ? '' : ` of ${cut(visible(worst.run), 40)}`;
    const others = waiting.length === 1 ? '' : `; ${plural(waiting.length - 1, 'other run waits', 'other runs wait')}, too`;
    const share = wholePercent(waits.exposed_share);
    return {
      tone: 'bad',
      text: `Training${of} waits for ${noun(waits.stage)} ${share} of the time, rank ${waits.rank} on ${cut(visible(waits.node), 40)}${since}; ${progress(worst)}${others}${reports}`,
      brief: `waits ${share}`,
    };
  }
  const [first] = heard.length > 0 ? heard : runs;
  const tail = runs.length === 1 && first ? progress(first) : `${plural(runs.length, 'run')} are being read`;
  if (heard.length === 0) {
    return { tone: 'unknown', text: `Training runs, and no rank reports its waiting time; ${tail}`, brief: 'training' };
  }
  return { tone: 'good', text: `Training is not held up by data; ${tail}${reports}`, brief: 'no waiting' };
}

function exposed(run: RunOverview): number {
  return run.waits?.exposed_share ?? 0;
}

/** How far the epoch of a run is, from 0 to 1. */
export function epochShare(run: { position?: number; epoch_samples?: number }): number {
  const whole = run.epoch_samples ?? 0;
  return whole > 0 ? Math.min(1, Math.max(0, (run.position ?? 0) / whole)) : 0;
}

function progress(run: RunOverview): string {
  if (run.epoch_ends && run.position < run.epoch_samples) return `epoch ${run.epoch} done in ${forecast(run.epoch_ends)}`;
  return `epoch ${run.epoch} is ${wholePercent(epochShare(run))} done`;
}
