// When an answer is asked for again. Pure.

/** Paths whose answers never change: those about a version, a plan or a record. One answer is enough; without one the page asks again. */
const FIXED = /^v1\/(?:versions|plans|runs\/[^/]+\/records)\//;
/** Questions that take a node long: the page waits for their answers. */
const LONG = /^v1\/versions\/[^/]+\/diff\?/;
/** The longest pause after failures of such a question, in milliseconds. */
const LONGEST = 300_000;
/** Refusals that say what is wrong with the question: asked again, it would be refused again. */
const WRONG = [400, 422];

export const isFixed = (path: string): boolean => FIXED.test(path);
export const isLong = (path: string): boolean => LONG.test(path);

/** Milliseconds until the next request after this number of failures in a row, the last of them with this status if the node answered; none if none is needed. */
export function pause(path: string, every: number, failures: number, status?: number): number | undefined {
  if (!isFixed(path)) return every;
  if (failures === 0 || (status !== undefined && WRONG.includes(status))) return undefined;
  return isLong(path) ? Math.max(every, Math.min(LONGEST, every * 2 ** (failures - 1))) : every;
}
