// Requests to the node that served this page: the token, refusals, and whether the node answers at all.

import { Store } from '../store';
import { cut, visible } from '../text';
import { nextPage } from './links';
import { isLong } from './pace';

/** The node answered, and refused. */
export class Refused extends Error {
  override name = 'Refused';

  constructor(
    readonly status: number,
    /** The last part of the problem's type: `not-found`. */
    readonly kind: string,
    readonly detail: string,
  ) {
    super(detail);
  }
}

/** No answer came. */
export class Unreachable extends Error {
  override name = 'Unreachable';
}

/** A request waits this long for its answer, in milliseconds; one for a sample's picture or sound, or a comparison, waits longer. */
const PATIENCE = 10_000;
const LONG_PATIENCE = 120_000;
const TOO_MANY = 429;
const MOST_TRIES = 4;
const BUSY_PAUSE = 300;
const FIRST_PAUSE = 1000;
const LONGEST_PAUSE = 15_000;
const TOKEN_KEY = 'shardd.token';

export interface Auth {
  token: string;
  /** Whether the node refused a request for want of a token, and why. */
  asked: boolean;
  detail: string;
}

export interface Link {
  /** Since when the node does not answer, in milliseconds since 1970. */
  downSince?: number;
  /** When the page tries again. */
  tryAt?: number;
}

/** When the last answer came. */
let answeredAt: number | undefined;

function remembered(): string {
  try {
    return sessionStorage.getItem(TOKEN_KEY) ?? '';
  } catch {
    return '';
  }
}

export const auth = new Store<Auth>({ token: remembered(), asked: false, detail: '' });
export const link = new Store<Link>({});

/** Called when requests may be sent again: after a new token, and once the node answers again. */
export const resumed = new Set<() => void>();

function resume(): void {
  for (const listener of [...resumed]) listener();
}

export function setToken(token: string): void {
  try {
    if (token === '') sessionStorage.removeItem(TOKEN_KEY);
    else sessionStorage.setItem(TOKEN_KEY, token);
  } catch {
    // Without storage the token lasts as long as the page.
  }
  auth.set({ token, asked: false, detail: '' });
  resume();
}

/** Whether a request would only be refused, or have no answer. */
export function isHeld(): boolean {
  return auth.get().asked || link.get().downSince !== undefined;
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await (await send('GET', path, undefined, signal)).json()) as T;
}

/** The bytes of an answer. Their type is for the caller to say: a page shows no document from elsewhere. */
export async function getBytes(path: string, signal?: AbortSignal): Promise<ArrayBuffer> {
  return (await send('GET', path, undefined, signal, '*/*')).arrayBuffer();
}

export interface Page<T> {
  items: T[];
  /** Where the next page is, if there is one. */
  next?: string;
}

/** A page of a list, and the address of the next one, relative to this page. */
export async function getPage<T>(path: string, signal?: AbortSignal): Promise<Page<T>> {
  const response = await send('GET', path, undefined, signal);
  const items = (await response.json()) as T[];
  const next = nextPage(response.headers.get('link'));
  return next === undefined ? { items } : { items, next };
}

export async function change(method: 'PUT' | 'POST' | 'DELETE', path: string, body?: unknown): Promise<void> {
  await send(method, path, body);
}

/** A request; its answer has a good status. A question that a busy node turns away is asked again, a little later each time. */
export async function send(method: string, path: string, body?: unknown, signal?: AbortSignal, accept = 'application/json', tries = 0): Promise<Response> {
  const { token } = auth.get();
  const headers: Record<string, string> = { accept };
  if (token !== '') headers['authorization'] = `Bearer ${token}`;
  if (body !== undefined) headers['content-type'] = 'application/json';
  const patience = accept === 'application/json' && !isLong(path) ? PATIENCE : LONG_PATIENCE;
  const late = AbortSignal.timeout(patience);
  let response: Response;
  try {
    response = await fetch(`./${path}`, {
      method,
      headers,
      body: body === undefined ? null : JSON.stringify(body),
      signal: signal ? any(signal, late) : late,
      cache: 'no-store',
      referrerPolicy: 'no-referrer',
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    // One request may be slow; the question for its health tells whether the node is there.
    void probe();
    throw new Unreachable(late.aborted ? `no answer within ${patience / 1000} s` : 'no connection');
  }
  if (response.ok) {
    answered();
    return response;
  }
  if (response.status === TOO_MANY && method === 'GET' && tries < MOST_TRIES) {
    answered();
    await new Promise((over) => setTimeout(over, BUSY_PAUSE * 2 ** tries * (0.5 + Math.random())));
    signal?.throwIfAborted();
    return send(method, path, body, signal, accept, tries + 1);
  }
  throw await refusal(response, token);
}

/** `AbortSignal.any` is younger than some browsers. */
function any(one: AbortSignal, other: AbortSignal): AbortSignal {
  const both = new AbortController();
  for (const signal of [one, other]) {
    if (signal.aborted) both.abort(signal.reason);
    else signal.addEventListener('abort', () => both.abort(signal.reason), { once: true });
  }
  return both.signal;
}

async function refusal(response: Response, token: string): Promise<Error> {
  const problem = await response.json().catch(() => undefined);
  const isProblem = typeof problem?.type === 'string' && problem.type.startsWith('urn:shardd:problem:');
  if (!isProblem && [502, 503, 504].includes(response.status)) {
    void probe();
    return new Unreachable(`a proxy answers ${response.status} in its place`);
  }
  answered();
  const kind = isProblem ? problem.type.slice('urn:shardd:problem:'.length) : '';
  const detail = cut(visible(problem?.detail ?? `status ${response.status}`), 600);
  if (response.status === 401 && auth.get().token === token) auth.update({ asked: true, detail });
  return new Refused(response.status, kind, detail);
}

function answered(): void {
  answeredAt = Date.now();
}

let probing = false;
let timer: ReturnType<typeof setTimeout> | undefined;
let pause = FIRST_PAUSE;

/** Asks for the node's health, which needs no token, until it answers. */
export async function probe(): Promise<void> {
  if (probing) return;
  probing = true;
  clearTimeout(timer);
  const answers = await fetch('./v1/health', { cache: 'no-store', signal: AbortSignal.timeout(PATIENCE) }).then(
    (response) => response.ok,
    () => false,
  );
  probing = false;
  const { downSince } = link.get();
  if (answers) {
    pause = FIRST_PAUSE;
    answeredAt = Date.now();
    if (downSince !== undefined) {
      link.set({});
      resume();
    }
    return;
  }
  const now = Date.now();
  // A little at random: many pages do not ask at the same moment.
  const wait = pause * (0.8 + 0.4 * Math.random());
  pause = Math.min(LONGEST_PAUSE, pause * 2);
  link.set({ downSince: downSince ?? answeredAt ?? now, tryAt: now + wait });
  timer = setTimeout(() => void probe(), wait);
}
