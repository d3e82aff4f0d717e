// The `link` header of a list. Pure.

/** The address of the next page, relative to the page that shows the list. */
export function nextPage(header: string | null): string | undefined {
  for (const entry of (header ?? '').split(/,\s*(?=<)/)) {
    const target = /^\s*<([^>]*)>\s*;\s*rel="?next"?\s*$/.exec(entry)?.[1];
    // The node knows nothing of the path under which a proxy serves it.
    const relative = target === undefined ? undefined : /(?:^|\/)(v1\/.*)$/.exec(target)?.[1];
    if (relative !== undefined) return relative;
  }
  return undefined;
}

/** The token in the address of a page. */
export const tokenOf = (address: string | undefined): string | undefined => /[?&]page=([^&]+)/.exec(address ?? '')?.[1];
