// Answers about a record of a training. A training that is underway has another record every few steps.

import type { RecordInfo } from './types';
import { Refused } from './client';
import { type Loaded, useKept } from './poll';

/** Records with the same name are of one training, as far as its data say. */
const training = (run: string, { id, ending, version, plan, first }: RecordInfo): string => (ending === 'underway' ? `${run} ${version} ${plan} ${first}` : `${run} ${id}`);

/**
 * The last answer about a record: what was there stays until the next record of a training that is underway has its own. A refusal has no
 * data, except that such a record is not found once the next one has taken its place.
 */
export function useOfRecord<T>(answer: Loaded<T>, run: string, record: RecordInfo, more = ''): T | undefined {
  const kept = useKept(answer.data, `${training(run, record)} ${more}`);
  const { error, data } = answer;
  const isReplaced = record.ending === 'underway' && error instanceof Refused && error.status === 404;
  return error instanceof Refused && data === undefined && !isReplaced ? undefined : kept;
}
