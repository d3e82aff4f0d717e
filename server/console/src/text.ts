// Makes text from elsewhere safe to look at: each character has a visible form, and a long text ends.

/** Control and format characters (bidirectional marks among them), lone surrogates, separators of lines. */
const UNSEEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;
/** The most characters of a title. */
const LONGEST = 2000;

const SHORT: Record<string, string> = { '\n': '\\n', '\r': '\\r', '\t': '\\t' };

/** The text with an escape in the place of each character that a reader cannot see: `\n`, `\u{202e}`. */
export function visible(text: unknown): string {
  return String(text ?? '').replace(UNSEEN, (one) => SHORT[one] ?? `\\u{${(one.codePointAt(0) ?? 0).toString(16)}}`);
}

/** At most `most` characters of a text, with an ellipsis in the place of the rest. */
export function cut(text: string, most = LONGEST): string {
  if (text.length <= most) return text;
  const characters = Array.from(text.slice(0, 2 * most));
  if (characters.length <= most && text.length <= 2 * most) return text;
  return `${characters.slice(0, Math.max(1, most - 1)).join('')}…`;
}

/** The text with a capital at its beginning. */
export function sentence(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** The parts of a text with code between backticks: every second one is code. */
export function withCode(text: string): string[] {
  const parts = text.split('`');
  // An odd number of backticks: the last one is a character.
  if (parts.length % 2 === 0) parts.push(parts.splice(-2).join('`'));
  return parts;
}

/** A word of a command line, in quotes where a shell would read it as something else. */
export function shell(word: string): string {
  const shown = visible(word);
  return /^[\w@%+=:,./-]+$/.test(shown) ? shown : `'${shown.replaceAll("'", "'\\''")}'`;
}
