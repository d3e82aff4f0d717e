// Addresses within the page: `#/nodes/n2`, with settings after a question mark. Pure.

export type Route =
  | { page: 'overview' | 'nodes' | 'shards' | 'datasets' | 'runs'; query: URLSearchParams }
  | { page: 'node' | 'run' | 'dataset' | 'shard'; name: string; query: URLSearchParams }
  | { page: 'sample'; name: string; sample: number; query: URLSearchParams }
  | { page: 'unknown'; query: URLSearchParams };

/** The page of a fragment of an address. */
export function parse(hash: string): Route {
  const text = hash.replace(/^#/, '');
  const mark = text.indexOf('?');
  const query = new URLSearchParams(mark < 0 ? '' : text.slice(mark + 1));
  const [first = '', second, ...rest] = (mark < 0 ? text : text.slice(0, mark)).split('/').filter((part) => part !== '');
  const unknown: Route = { page: 'unknown', query };
  if (second !== undefined) {
    const name = decoded(second);
    if (name === undefined) return unknown;
    if (first === 'datasets' && rest.length === 2 && rest[0] === 'samples') {
      const sample = whole(rest[1], -1);
      return sample < 0 ? unknown : { page: 'sample', name, sample, query };
    }
    if (rest.length > 0) return unknown;
    if (first === 'datasets') return { page: 'dataset', name, query };
    if (first === 'nodes') return { page: 'node', name, query };
    if (first === 'runs') return { page: 'run', name, query };
    if (first === 'shards') return { page: 'shard', name, query };
    return unknown;
  }
  switch (first) {
    case '':
      return { page: 'overview', query };
    case 'nodes':
    case 'shards':
    case 'datasets':
    case 'runs':
      return { page: first, query };
    default:
      return unknown;
  }
}

function decoded(part: string): string | undefined {
  try {
    return decodeURIComponent(part);
  } catch {
    return undefined;
  }
}

/** A name as part of an address, whatever its characters. */
export function part(name: string): string {
  // A lone surrogate has no encoding.
  return encodeURIComponent(name.replace(/\p{Cs}/gu, '\ufffd'));
}

/** The whole number from 0 that a text has, at most `most`; another text has none. */
export function whole(text: string | null | undefined, none: number, most = Number.MAX_SAFE_INTEGER): number {
  return /^\d{1,16}$/.test(text ?? '') && Number(text) <= most ? Number(text) : none;
}

type Settings = Record<string, string | undefined>;

export const nodeHref = (name: string): string => `#/nodes/${part(name)}`;
export const shardHref = (id: string): string => `#/shards/${part(id)}`;
export const runHref = (name: string, settings: Settings = {}): string => href(`runs/${part(name)}`, settings);
export const datasetHref = (name: string, settings: Settings = {}): string => href(`datasets/${part(name)}`, settings);
export const sampleHref = (name: string, sample: number, version: string): string => href(`datasets/${part(name)}/samples/${sample}`, { version });

/** The fragment of a list with its settings; those that are empty are left out. */
export const listHref = (page: 'nodes' | 'shards' | 'datasets' | 'runs', settings: Settings): string => href(page, settings);

function href(path: string, settings: Settings): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(settings)) if (value) query.set(name, value);
  const text = query.toString();
  return text === '' ? `#/${path}` : `#/${path}?${text}`;
}
