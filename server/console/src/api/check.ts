// Whether an answer has the form that pages rely on. Pure.

import type { Overview } from './types';

/** The overview, if it has its lists and numbers; a page shows another answer as a fault, and stays usable. */
export function checked(answer: unknown): Overview {
  const is = (value: unknown): value is Record<string, unknown> => typeof value === 'object' && value !== null && !Array.isArray(value);
  if (!is(answer)) throw new Error('the overview is no object');
  for (const name of ['nodes', 'totals']) if (!is(answer[name])) throw new Error(`the overview has no ${name}`);
  for (const name of ['runs', 'findings']) if (!Array.isArray(answer[name]) || !answer[name].every(is)) throw new Error(`the overview has no list of ${name}`);
  for (const run of answer['runs'] as Record<string, unknown>[]) {
    const isRun = typeof run['run'] === 'string' && Array.isArray(run['readers']) && run['readers'].every((reader) => is(reader) && is(reader['wait_shares'])) && is(run['exchange']);
    if (!isRun || (run['waits'] !== undefined && !is(run['waits']))) throw new Error('a run of the overview has another form');
  }
  for (const finding of answer['findings'] as Record<string, unknown>[]) {
    if (!['title', 'cause', 'remedy', 'kind', 'severity'].every((name) => typeof finding[name] === 'string')) throw new Error('a finding of the overview has another form');
  }
  return answer as unknown as Overview;
}
