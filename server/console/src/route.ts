// Addresses within the page: `#/nodes/n2`, with settings after a question mark. Pure.

export type Route =
  | { page: 'overview' | 'nodes' | 'shards' | 'runs'; query: URLSearchParams }
  | { page: 'node' | 'run'; name: string; query: URLSearchParams }
  | { page: 'unknown'; query: URLSearchParams };

/** The page of a fragment of an address. */
export function parse(hash: string): Route {
  const text = hash.replace(/^#/, '');
  const mark = text.indexOf('?');
  const query = new URLSearchParams(mark < 0 ? '' : text.slice(mark + 1));
  const [first = '', second, ...rest] = (mark < 0 ? text : text.slice(0, mark)).split('/').filter((part) => part !== '');
  const unknown: Route = { page: 'unknown', query };
  if (rest.length > 0) return unknown;
  if (second !== undefined) {
    const name = decoded(second);
    if (name === undefined) return unknown;
    if (first === 'nodes') return { page: 'node', name, query };
    if (first === 'runs') return { page: 'run', name, query };
    return unknown;
  }
  switch (first) {
    case '':
      return { page: 'overview', query };
    case 'nodes':
    case 'shards':
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

export const nodeHref = (name: string): string => `#/nodes/${part(name)}`;
export const runHref = (name: string): string => `#/runs/${part(name)}`;

/** The fragment of a list with its settings; those that are empty are left out. */
export function listHref(page: 'nodes' | 'shards' | 'runs', settings: Record<string, string | undefined>): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(settings)) if (value) query.set(name, value);
  const text = query.toString();
  return text === '' ? `#/${page}` : `#/${page}?${text}`;
}
