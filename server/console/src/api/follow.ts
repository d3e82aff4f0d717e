// Follows /v1/events while the page is visible, and continues where it stopped.

import { Store } from '../store';
import type { Entry, Line } from '../journal';
import { added, ofChange } from '../journal';
import { auth, isHeld, probe, Refused, resumed } from './client';
import { EventParser } from './events';
import { nudge, refreshAll } from './poll';
import type { Change } from './types';

/** The most lines of the journal. */
const MOST = 300;
/** A stream without a sign of life for this time is given up; the node sends one every 15 s. */
const SILENCE = 40_000;
/** A hidden page keeps its stream this long. */
const HIDDEN = 60_000;
const FIRST_PAUSE = 1000;
const LONGEST_PAUSE = 30_000;

export interface Journal {
  /** Since when the page notes changes, in seconds since 1970. */
  since: number;
  entries: Entry[];
  /** Why no events come, if the node refuses them. */
  refused?: string;
}

export const journal = new Store<Journal>({ since: Date.now() / 1000, entries: [] });

/** Adds lines, the newest first. */
export function note(...lines: Line[]): void {
  if (lines.length === 0) return;
  journal.update({ entries: added(journal.get().entries, lines, Date.now() / 1000, MOST) });
}

let lastId: string | undefined;
let stream: AbortController | undefined;
let timer: ReturnType<typeof setTimeout> | undefined;
let pause = FIRST_PAUSE;

export function follow(): void {
  const restart = (): void => {
    clearTimeout(timer);
    if (stream === undefined && !document.hidden) void connect();
  };
  resumed.add(() => {
    stream?.abort();
    pause = FIRST_PAUSE;
    restart();
  });
  document.addEventListener('visibilitychange', () => {
    clearTimeout(timer);
    if (document.hidden) timer = setTimeout(() => stream?.abort(), HIDDEN);
    else restart();
  });
  restart();
}

async function connect(): Promise<void> {
  if (stream !== undefined || isHeld()) return;
  const own = new AbortController();
  stream = own;
  try {
    await read(own);
  } catch (error) {
    if (error instanceof Refused) {
      if (error.status === 403) journal.update({ refused: error.detail });
    } else if (!own.signal.aborted) {
      void probe();
    }
  }
  if (stream === own) stream = undefined;
  if (document.hidden) return;
  clearTimeout(timer);
  timer = setTimeout(() => void connect(), pause);
  pause = Math.min(LONGEST_PAUSE, pause * 2);
}

async function read(own: AbortController): Promise<void> {
  const { token } = auth.get();
  const headers: Record<string, string> = { accept: 'text/event-stream' };
  if (token !== '') headers['authorization'] = `Bearer ${token}`;
  if (lastId !== undefined) headers['last-event-id'] = lastId;
  const response = await fetch('./v1/events', { headers, signal: own.signal, cache: 'no-store' });
  if (!response.ok || !response.body) {
    const problem = await response.json().catch(() => undefined);
    const detail = String(problem?.detail ?? `status ${response.status}`);
    if (response.status === 401 && auth.get().token === token) auth.update({ asked: true, detail });
    if (response.status === 400) lastId = undefined;
    throw new Refused(response.status, '', detail);
  }
  const { refused, ...rest } = journal.get();
  if (refused !== undefined) journal.set(rest);
  pause = FIRST_PAUSE;
  const parser = new EventParser();
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  let silence: ReturnType<typeof setTimeout> | undefined;
  try {
    for (;;) {
      clearTimeout(silence);
      silence = setTimeout(() => own.abort(), SILENCE);
      const { done, value } = await reader.read();
      if (done) return;
      for (const { event, data, id } of parser.feed(decoder.decode(value, { stream: true }))) {
        if (id !== undefined) lastId = id;
        if (event === 'reset' || event === 'lagged') {
          // The node no longer has all changes: the page asks for everything in view again.
          lastId = undefined;
          note({ mark: 'info', text: 'Some changes before this line are missing' });
          refreshAll();
          if (event === 'lagged') return;
          continue;
        }
        const change = parsed(data);
        if (!change) continue;
        note(ofChange(change));
        nudge();
      }
    }
  } finally {
    clearTimeout(silence);
    own.abort();
  }
}

function parsed(data: string): Change | undefined {
  try {
    const { kind, name, removed, revision } = JSON.parse(data) as Change;
    return { kind: String(kind), name: String(name), removed: removed === true, revision: Number(revision) };
  } catch {
    return undefined;
  }
}
