// Numbers and times for people. Pure. A dash stands for a value without a number.

import type { Forecast, Seconds } from './api/types';

export const NONE = '–';
/** Between a number and its unit, so that a line does not end there. */
const GAP = '\u00a0';
const BINARY = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];

export function isNumber(value: unknown): value is number {
  return typeof value === 'number' && Number.isFinite(value);
}

/** `1.9 GiB`: the largest unit of which there is one after rounding, as `shardctl` prints it. */
export function bytes(value: unknown): string {
  if (!isNumber(value)) return NONE;
  for (let unit = BINARY.length - 1; unit > 0; unit -= 1) {
    const scaled = value / 1024 ** unit;
    if (Math.round(scaled * 10) >= 10) return `${scaled.toFixed(1)}${GAP}${BINARY[unit]}`;
  }
  return `${Math.round(value)}${GAP}B`;
}

export function rate(value: unknown): string {
  return isNumber(value) ? `${bytes(value)}/s` : NONE;
}

/** `12,480` */
export function count(value: unknown): string {
  if (!isNumber(value)) return NONE;
  return Math.round(value).toLocaleString('en');
}

/** Three digits at least: `12,480`, `64.3`, `0.52`. */
export function amount(value: unknown): string {
  if (!isNumber(value)) return NONE;
  const size = Math.abs(value);
  if (size >= 99.95 || value === 0) return count(value);
  return value.toFixed(size >= 9.995 ? 1 : 2);
}

/** `41 %`; below ten with a tenth, as long as that is not zero: `4.2 %`. */
export function percent(share: unknown): string {
  if (!isNumber(share)) return NONE;
  const value = share * 100;
  const size = Math.abs(value);
  const text = size >= 9.95 || size < 0.05 ? value.toFixed(0) : value.toFixed(1).replace(/\.0$/, '');
  return `${text.replace(/^-0$/, '0')}${GAP}%`;
}

/** `41 %`, never with a tenth: for sentences. */
export function wholePercent(share: unknown): string {
  return isNumber(share) ? `${Math.round(share * 100)}${GAP}%` : NONE;
}

const SPANS: [number, number, string][] = [
  [120, 1, 's'],
  [7200, 60, 'min'],
  [172_800, 3600, 'h'],
  [Number.POSITIVE_INFINITY, 86_400, 'days'],
];

/** The number and the unit of a span, in its largest unit. */
function span(seconds: number): [string, string] {
  const [, size, unit] = SPANS.find(([most]) => seconds < most) ?? [0, 86_400, 'days'];
  return [(seconds / size).toFixed(0), unit];
}

/** `14 min`, in the largest unit; below a second `2.4 ms`. */
export function duration(seconds: unknown): string {
  if (!isNumber(seconds)) return NONE;
  if (seconds > 0 && seconds < 1e-3) return `${(seconds * 1e6).toFixed(0)}${GAP}µs`;
  if (seconds > 0 && seconds < 1) return `${(seconds * 1e3).toFixed(seconds < 0.01 ? 1 : 0)}${GAP}ms`;
  return span(Math.max(0, seconds)).join(GAP);
}

/** `14 min (12 to 17)`, or with units where they differ: `2 min (110 s to 4 min)`. */
export function forecast(value: Forecast | undefined): string {
  if (!value || !isNumber(value.in_s)) return NONE;
  const [mean, low, high] = [value.in_s, value.earliest_s, value.latest_s].map((at) => span(Math.max(0, at)));
  if (!mean || !low || !high || !isNumber(value.earliest_s) || !isNumber(value.latest_s)) return duration(value.in_s);
  const expected = mean.join(GAP);
  if (low[0] === high[0] && low[1] === high[1]) return expected;
  const isOne = low[1] === mean[1] && high[1] === mean[1];
  return isOne ? `${expected} (${low[0]} to ${high[0]})` : `${expected} (${low.join(GAP)} to ${high.join(GAP)})`;
}

function date(seconds: Seconds): Date | undefined {
  const at = new Date(seconds * 1000);
  return Number.isNaN(at.getTime()) ? undefined : at;
}

const two = (value: number): string => String(value).padStart(2, '0');
/** Within this time a time of day is clear without its date, in seconds. */
const NEAR = 12 * 3600;
const MONTHS = ['Jan', 'Feb', 'Mar', 'Apr', 'May', 'Jun', 'Jul', 'Aug', 'Sep', 'Oct', 'Nov', 'Dec'];

/** The local time: `12:04`, on another day `27 Nov 12:04`, in another year `27 Nov 2025`. The last hours of a day have no date. */
export function clock(seconds: unknown, now: Seconds = Date.now() / 1000, withSeconds = false): string {
  const at = isNumber(seconds) ? date(seconds) : undefined;
  const today = date(now);
  if (!at || !today) return NONE;
  const time = `${two(at.getHours())}:${two(at.getMinutes())}${withSeconds ? `:${two(at.getSeconds())}` : ''}`;
  const isNear = Math.abs(today.getTime() - at.getTime()) < NEAR * 1000;
  if (isNear || at.toDateString() === today.toDateString()) return time;
  const day = `${at.getDate()}${GAP}${MONTHS[at.getMonth()]}`;
  return at.getFullYear() === today.getFullYear() ? `${day} ${time}` : `${day} ${at.getFullYear()}`;
}

/** The same in UTC, in full. */
export function utc(seconds: unknown): string {
  const at = isNumber(seconds) ? date(seconds) : undefined;
  return at ? `${at.toISOString().slice(0, 19).replace('T', ' ')} UTC` : '';
}

/** The first characters of a digest. */
export function short(digest: unknown): string {
  return String(digest ?? '').slice(0, 12);
}

/** `1 node`, `2 nodes`. */
export function plural(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}
