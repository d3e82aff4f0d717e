// The numbers of the tables of a run. Pure.

import type { AuditReport, EpochExchange } from '../api/types';

/** `0 to 3, 8` */
export function ranges(numbers: number[]): string {
  const sorted = [...numbers].sort((one, other) => one - other);
  const found: [number, number][] = [];
  for (const number of sorted) {
    const last = found.at(-1);
    if (last && number === last[1] + 1) last[1] = number;
    else found.push([number, number]);
  }
  return found.map(([first, last]) => (first === last ? String(first) : last === first + 1 ? `${first}, ${last}` : `${first} to ${last}`)).join(', ');
}

/** The part of the sending that reading hid, as a node computes it. */
export function hiddenShare(of: EpochExchange): number | undefined {
  return of.sending_micros > 0 ? 1 - of.waited_micros / of.sending_micros : undefined;
}

/** The same exchange, as two nodes saw it. */
export function plus(one: EpochExchange, other: EpochExchange): EpochExchange {
  const add = (field: keyof EpochExchange): number => (one[field] ?? 0) + (other[field] ?? 0);
  return {
    expected_grains: add('expected_grains'),
    received_grains: add('received_grains'),
    received_bytes: add('received_bytes'),
    sent_grains: add('sent_grains'),
    sent_bytes: add('sent_bytes'),
    unsent_grains: add('unsent_grains'),
    sending_micros: add('sending_micros'),
    // A wait that is longer than the sending had another cause.
    waited_micros: one.waited_micros + Math.min(other.waited_micros, other.sending_micros),
  };
}

export interface AuditRow {
  epoch: number;
  world: number;
  ranks: number;
  samples: number;
}

/** The reports of ranks, one row for each epoch and world size, the newest first. */
export function auditRows(reports: AuditReport[]): AuditRow[] {
  const rows = new Map<string, AuditRow>();
  for (const { epoch, world, samples } of reports) {
    const key = `${epoch}/${world}`;
    const row = rows.get(key) ?? { epoch, world, ranks: 0, samples: 0 };
    rows.set(key, { ...row, ranks: row.ranks + 1, samples: row.samples + samples });
  }
  return [...rows.values()].sort((one, other) => other.epoch - one.epoch || other.world - one.world);
}
