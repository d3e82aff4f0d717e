// Which findings a short list has. Pure.

import type { Finding } from './api/types';

export interface Listed {
  finding: Finding;
  /** How many of its kind the list leaves out after it. */
  more: number;
}

/** At most `most` findings, and of each kind at most `ofKind`: a fault of a hundred nodes hides no other. */
export function short(findings: Finding[], most: number, ofKind: number): Listed[] {
  const shown: Listed[] = [];
  const last = new Map<string, { listed: Listed; count: number }>();
  for (const finding of findings) {
    const known = last.get(finding.kind);
    if (known && known.count >= ofKind) {
      known.listed.more += 1;
    } else if (shown.length < most) {
      const listed = { finding, more: 0 };
      shown.push(listed);
      last.set(finding.kind, { listed, count: (known?.count ?? 0) + 1 });
    }
  }
  return shown;
}
