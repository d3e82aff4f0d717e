import assert from 'node:assert/strict';
import test from 'node:test';
import { amount, bytes, clock, count, duration, forecast, percent, plural, rate, utc, wholePercent } from './format';

const plain = (text: string): string => text.replaceAll('\u00a0', ' ');

test('a size has the largest unit of which there is one after rounding', () => {
  const sizes: [number, string][] = [[0, '0 B'], [1023, '1.0 KiB'], [972, '972 B'], [1536, '1.5 KiB'], [1024 ** 2 - 1, '1.0 MiB'], [1.9 * 1024 ** 3, '1.9 GiB'], [2 ** 63, '8.0 EiB']];
  for (const [size, text] of sizes) assert.equal(plain(bytes(size)), text);
  assert.equal(plain(rate(12.3 * 1024 ** 2)), '12.3 MiB/s');
});

test('numbers are grouped, and small ones keep three digits', () => {
  assert.equal(count(1_234_567), '1,234,567');
  assert.deepEqual([12_480.4, 99.94, 64.3, 9.994, 0.524, 0].map(amount), ['12,480', '99.9', '64.3', '9.99', '0.52', '0']);
  assert.equal(plural(1, 'node'), '1 node');
  assert.equal(plural(2000, 'node'), '2,000 nodes');
});

test('a share below ten percent has a tenth', () => {
  assert.deepEqual([0.414, 0.0996, 0.042, 0.04, 0, 1, -0.00001].map((share) => plain(percent(share))), ['41 %', '10 %', '4.2 %', '4 %', '0 %', '100 %', '0 %']);
  assert.equal(plain(wholePercent(0.087)), '9 %');
});

test('a time has its largest unit', () => {
  const times: [number, string][] = [[0, '0 s'], [0.0000042, '4 µs'], [0.0024, '2.4 ms'], [0.0384, '38 ms'], [41, '41 s'], [119, '119 s'], [840, '14 min'], [9000, '3 h'], [5_270_400, '61 days']];
  for (const [time, text] of times) assert.equal(plain(duration(time)), text);
});

test('a forecast names its bounds, with units where they differ', () => {
  const of = (in_s: number, earliest_s: number, latest_s: number): string => plain(forecast({ in_s, earliest_s, latest_s }));
  assert.equal(of(840, 720, 1020), '14 min (12 to 17)');
  assert.equal(of(130, 110, 240), '2 min (110 s to 4 min)');
  assert.equal(of(840, 838, 842), '14 min');
  assert.equal(forecast(undefined), '–');
});

test('times are local, and in full in UTC', () => {
  const noon = Date.UTC(2026, 10, 28, 11, 4, 31) / 1000;
  assert.equal(clock(noon, noon), '12:04');
  assert.equal(clock(noon, noon, true), '12:04:31');
  const midnight = Date.UTC(2026, 10, 28, 23, 0) / 1000;
  assert.equal(clock(midnight - 600, midnight + 600), '23:50');
  assert.equal(plain(clock(noon - 86_400, noon)), '27 Nov 12:04');
  assert.equal(plain(clock(noon - 400 * 86_400, noon)), '24 Oct 2025');
  assert.equal(utc(noon), '2026-11-28 11:04:31 UTC');
});

test('a dash stands for a value without a number', () => {
  for (const value of [undefined, null, Number.NaN, Number.POSITIVE_INFINITY, '7', {}, []]) {
    for (const format of [bytes, rate, count, amount, percent, wholePercent, duration, clock]) assert.equal(format(value), '–');
  }
  assert.equal(clock(1e20), '–');
  assert.equal(utc(1e20), '');
});
