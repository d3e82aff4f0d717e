// Answers that a page shows, asked for again and again while the page is visible. Components that show the same share one.

import { useEffect, useRef, useState } from 'preact/hooks';
import { get, getPage, isHeld, link, type Page, Refused, resumed, auth } from './client';
import { tokenOf } from './links';
import { isFixed, isLong, pause } from './pace';

export interface Loaded<T> {
  data?: T;
  /** When the data came, in milliseconds since 1970. */
  at?: number;
  /** Why the last request has no data. */
  error?: Error;
}

/** At most this number of answers stay for pages that are shown again. */
const KEPT = 40;
/** Between an event and the early request, and between two requests for the same, in milliseconds. */
const NUDGE = 250;
const SOONEST = 1000;

class Resource {
  state: Loaded<unknown> = {};
  private readonly users = new Map<object, { every: number; redraw: () => void }>();
  private timer: ReturnType<typeof setTimeout> | undefined;
  private request: AbortController | undefined;
  private began = 0;
  /** Requests that failed since the last answer. */
  private failures = 0;
  /** Whether a newer answer is wanted than that of the request under way. */
  private isWantedAgain = false;

  constructor(
    readonly path: string,
    private readonly load: (signal: AbortSignal) => Promise<unknown>,
  ) {}

  /** Whether a later answer would be the same. */
  get isDone(): boolean {
    return this.state.data !== undefined && isFixed(this.path);
  }

  get isUsed(): boolean {
    return this.users.size > 0;
  }

  use(user: object, every: number, redraw: () => void): () => void {
    this.users.set(user, { every, redraw });
    const age = Date.now() - this.began;
    if (this.request === undefined && !this.isDone) this.plan(this.state.data === undefined ? 0 : Math.max(0, every - age));
    return () => {
      this.users.delete(user);
      if (!this.isUsed) this.stop();
    };
  }

  /** Asks now, unless it did a moment ago. */
  refresh(soonest = 0): void {
    if (this.isUsed) this.plan(Math.max(0, this.began + soonest - Date.now()));
  }

  stop(): void {
    clearTimeout(this.timer);
    this.request?.abort();
    this.request = undefined;
  }

  private plan(wait: number): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.ask(), wait);
  }

  private async ask(): Promise<void> {
    if (this.request !== undefined) {
      this.isWantedAgain = true;
      return;
    }
    if (!this.isUsed || document.hidden || isHeld()) return;
    this.isWantedAgain = false;
    const request = new AbortController();
    this.request = request;
    this.began = Date.now();
    try {
      this.state = { data: await this.load(request.signal), at: Date.now() };
      this.failures = 0;
    } catch (error) {
      if (request.signal.aborted) return;
      const failed = error instanceof Error ? error : new Error(String(error));
      this.failures += 1;
      // Data of before stays, except where the node says that there is none, or none for this token.
      const isGone = failed instanceof Refused && [403, 404].includes(failed.status);
      this.state = isGone ? { error: failed } : { ...this.state, error: failed };
    }
    this.request = undefined;
    for (const { redraw } of [...this.users.values()]) redraw();
    if (!this.isUsed) return;
    const every = Math.min(...[...this.users.values()].map((user) => user.every));
    const { error } = this.state;
    const wait = pause(this.path, every, this.failures, error instanceof Refused ? error.status : undefined);
    if (wait !== undefined) this.plan(this.isWantedAgain ? 0 : wait);
  }
}

const resources = new Map<string, Resource>();

function resource(path: string, load: (signal: AbortSignal) => Promise<unknown>): Resource {
  const known = resources.get(path);
  if (known) {
    resources.delete(path);
    resources.set(path, known);
    return known;
  }
  for (const [old, unused] of resources) {
    if (resources.size < KEPT) break;
    if (!unused.isUsed) resources.delete(old);
  }
  const made = new Resource(path, load);
  resources.set(path, made);
  return made;
}

/** The newest answer of a path; `every` is the pause between requests, in milliseconds. */
export function useAnswer<T>(path: string, every: number): Loaded<T> {
  return (useAnswers<T>([path], every)[0] ?? {}) as Loaded<T>;
}

/** The same of several. */
export function useAnswers<T>(paths: string[], every: number, load = get as (path: string, signal: AbortSignal) => Promise<T>): Loaded<T>[] {
  const [, redraw] = useState({});
  const all = paths.map((path) => resource(path, (signal) => load(path, signal)));
  useEffect(() => {
    const user = {};
    const ends = all.map((one) => one.use(user, every, () => redraw({})));
    return () => ends.forEach((end) => end());
  }, [paths.join('\n'), every]);
  return all.map((one) => one.state as Loaded<T>);
}

/** The last value under a key: what was there stays until there is more. */
export function useKept<T>(value: T | undefined, key: string): T | undefined {
  const last = useRef<{ key: string; value: T } | undefined>(undefined);
  if (value !== undefined) last.current = { key, value };
  return last.current?.key === key ? last.current.value : undefined;
}

/** A page of a list, by the token of its beginning, and the token of the next page. `path` has the limit. */
export function usePage<T>(path: string, token: string, every: number): { page: Loaded<Page<T>>; next: string | undefined } {
  const [page = {}] = useAnswers<Page<T>>([token === '' ? path : `${path}&page=${encodeURIComponent(token)}`], every, getPage<T>);
  return { page, next: tokenOf(page.data?.next) };
}

/** Asks for all that is shown; for what never changes only with `isWhole`. */
export function refreshAll(isWhole = true): void {
  for (const one of resources.values()) if (isWhole || !one.isDone) one.refresh();
}

let nudged: ReturnType<typeof setTimeout> | undefined;

/** Something has changed: asks earlier than planned. */
export function nudge(): void {
  clearTimeout(nudged);
  nudged = setTimeout(() => {
    for (const one of resources.values()) if (!SLOW.test(one.path) && !isLong(one.path) && !one.isDone) one.refresh(SOONEST);
  }, NUDGE);
}
/** Paths whose answers do not follow from events, beside long questions. */
const SLOW = /\/series\?|\/hot\?|^v1\/hot/;

resumed.add(() => refreshAll());
auth.watch(() => {
  // Another token may see other things.
  for (const one of resources.values()) if (!one.isUsed) resources.delete(one.path);
});
document.addEventListener('visibilitychange', () => {
  if (document.hidden) return;
  if (link.get().downSince === undefined) refreshAll(false);
});

/** A long list of which the rows in view are asked for, `size` in a request. `path` ends before the offset. */
export function useWindows<T>(path: string, every: number, size = 50) {
  const [view, setView] = useState({ first: 0, end: 1 });
  const from = Math.floor(view.first / size);
  const to = Math.floor(Math.max(view.first, view.end - 1) / size);
  const answers = useAnswers<{ total: number; rows: T[] }>(Array.from({ length: to - from + 1 }, (_, at) => `${path}offset=${(from + at) * size}&limit=${size}`), every);
  const newest = answers.find((answer) => answer.data)?.data;
  // The last total of the list, while rows of another window are on their way.
  const last = useRef<{ path: string; total: number } | undefined>(undefined);
  if (newest) last.current = { path, total: newest.total };
  return {
    total: last.current?.path === path ? last.current.total : undefined,
    first: answers[0] ?? {},
    row: (index: number): T | undefined => answers[Math.floor(index / size) - from]?.data?.rows[index % size],
    onView: (first: number, end: number) => setView({ first, end }),
  };
}
