// What changed between two versions, in words. Pure.

import type { Counted, LeftOut, SchemaChange } from './api/types';
import { count } from './format';

/** `7 in both, 3 added, 2 removed` */
export function counted(change: Counted): string {
  const parts = [`${count(change.kept)} in both`, change.added > 0 && `${count(change.added)} added`, change.removed > 0 && `${count(change.removed)} removed`];
  return parts.filter(Boolean).join(', ');
}

/** What happened to a column, and how. */
export function changeOf(change: SchemaChange): [string, string, string] {
  switch (change.change) {
    case 'added':
      return [change.column, 'added', change.data_type];
    case 'removed':
      return [change.column, 'removed', change.data_type];
    case 'type':
      return [change.column, 'another type', `${change.to} instead of ${change.from}`];
    case 'nullable':
      return [change.column, 'missing values', change.nullable ? 'may be null' : 'is never null'];
    case 'metadata':
      return [change.column, change.key, `${change.to ?? 'nothing'} instead of ${change.from ?? 'nothing'}`];
    case 'order':
      return ['all', 'another order', `${change.to.join(', ')} instead of ${change.from.join(', ')}`];
    default:
      return ['', 'another change', ''];
  }
}

/** Why samples were not compared. */
export function withoutSamples(why: LeftOut | undefined): string {
  if (why === 'shards') return 'Too many shards differ to compare their samples here.';
  if (why === 'time') return 'The digests of the samples that may differ took too long to read.';
  return 'The shards that differ have too many samples to compare here.';
}

/** `+2.4 points` */
export function points(change: number): string {
  const value = (100 * change).toFixed(1);
  return /^-?0\.0$/.test(value) ? '0' : `${change > 0 ? '+' : ''}${value}\u00a0points`;
}
