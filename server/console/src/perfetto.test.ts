import assert from 'node:assert/strict';
import test from 'node:test';
import { handOver } from './perfetto';

const ORIGIN = 'https://traces.example';
const TRACE = { buffer: new ArrayBuffer(4), title: 'run r', fileName: 'r.trace.json' };

/** A page, and a window that it opened, which answers the `after`-th question. */
function windows(after: number) {
  const listeners = new Set<(event: MessageEvent) => void>();
  const got: { message: unknown; origin: string }[] = [];
  const host = { addEventListener: (_: string, one: (event: MessageEvent) => void) => listeners.add(one), removeEventListener: (_: string, one: (event: MessageEvent) => void) => listeners.delete(one) };
  const say = (source: unknown, origin: string, data: unknown): void => listeners.forEach((one) => one({ source, origin, data } as MessageEvent));
  const opened = {
    closed: false,
    postMessage(message: unknown, origin: string) {
      got.push({ message, origin });
      if (message === 'PING' && got.length === after) say(opened, ORIGIN, 'PONG');
    },
  };
  return { host: host as unknown as Window, opened: opened as unknown as Window & { closed: boolean }, got, say, listeners };
}

test('the trace goes over once the window is ready, to its origin alone', async () => {
  const { host, opened, got, listeners } = windows(3);
  await handOver(host, opened, ORIGIN, TRACE);
  assert.deepEqual(got.map(({ message }) => message), ['PING', 'PING', 'PING', { perfetto: TRACE }]);
  assert.ok(got.every(({ origin }) => origin === ORIGIN));
  assert.equal(listeners.size, 0);
});

test('answers of other windows, other origins and other words count for nothing', async () => {
  const { host, opened, got, say } = windows(0);
  const over = handOver(host, opened, ORIGIN, TRACE, 250);
  say(host, ORIGIN, 'PONG');
  say(opened, 'https://other.example', 'PONG');
  say(opened, ORIGIN, 'PING');
  await assert.rejects(over, /does not answer/);
  assert.ok(got.every(({ message }) => message === 'PING'));
});

test('a window that is closed gets nothing', async () => {
  const { host, opened } = windows(0);
  opened.closed = true;
  await assert.rejects(handOver(host, opened, ORIGIN, TRACE), /closed/);
});
