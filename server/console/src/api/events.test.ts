import assert from 'node:assert/strict';
import test from 'node:test';
import { EventParser, type ServerEvent } from './events';

const STREAM = ': still here\n\nevent: node\ndata: {"kind":"node"}\n\nevent: run\ndata: a\ndata: b\nid: 12\n\nevent: reset\ndata:gone\n\n';
const EVENTS: ServerEvent[] = [
  { event: 'node', data: '{"kind":"node"}' },
  { event: 'run', data: 'a\nb', id: '12' },
  { event: 'reset', data: 'gone' },
];

test('events are the same wherever the stream is cut', () => {
  for (let at = 0; at <= STREAM.length; at += 1) {
    const parser = new EventParser();
    assert.deepEqual([...parser.feed(STREAM.slice(0, at)), ...parser.feed(STREAM.slice(at))], EVENTS);
  }
  const parser = new EventParser();
  assert.deepEqual([...STREAM].flatMap((character) => parser.feed(character)), EVENTS);
});

test('all ends of lines are understood', () => {
  for (const end of ['\r\n', '\r']) {
    const text = STREAM.replaceAll('\n', end);
    for (let at = 0; at <= text.length; at += 1) {
      const parser = new EventParser();
      // A last carriage return may be half an end: the next byte tells.
      assert.deepEqual([...parser.feed(text.slice(0, at)), ...parser.feed(`${text.slice(at)}:\n`)], EVENTS);
    }
  }
});

test('a comment and an event without data are no events', () => {
  const parser = new EventParser();
  assert.deepEqual(parser.feed(': a\n\nevent: x\n\nid: 3\n\n'), []);
});

test('a line without an end is refused at some length', () => {
  const parser = new EventParser();
  assert.throws(() => {
    for (let at = 0; at < 20; at += 1) parser.feed('x'.repeat(1 << 17));
  }, /without an end/);
});
