// Small pieces of every page: names, times, bars, marks.

import type { ComponentChildren, JSX } from 'preact';
import type { Loaded } from '../api/poll';
import { Refused, Unreachable } from '../api/client';
import { STAGES, type Seconds, type Severity, type Stage, type WaitShares } from '../api/types';
import { clock, duration, isNumber, percent, utc } from '../format';
import { cut, sentence, shell, visible, withCode } from '../text';

/** Text from elsewhere, with its end cut off; the whole is in its title. */
export function Name({ text, most = 40 }: { text: unknown; most?: number }) {
  const whole = visible(text);
  const shown = cut(whole, most);
  return shown === whole ? <span class="name">{shown}</span> : (
    <span class="name" title={cut(whole)}>{shown}</span>
  );
}

/** A sentence from elsewhere; the parts between backticks are code. */
export function Prose({ text, most = 600 }: { text: unknown; most?: number }) {
  return <>{withCode(cut(visible(text), most)).map((part, at) => (at % 2 === 1 ? <code key={at}>{part}</code> : part))}</>;
}

/** A digest by its first characters. */
export function Digest({ text }: { text: unknown }) {
  const whole = visible(text);
  return <code class="digest" title={cut(whole)}>{cut(whole.slice(0, 12), 12)}</code>;
}

/** A command to copy: one click selects all of it. */
export function Command({ text }: { text: string }) {
  return <code class="command">{visible(text)}</code>;
}

/** This node, as `--server` of a command names it. */
export const node = (): string => shell(`${location.origin}${location.pathname}`.replace(/\/$/, ''));

/** A local time; its title has UTC. */
export function Time({ at, seconds = false }: { at: Seconds | undefined; seconds?: boolean }) {
  const iso = utc(at);
  if (iso === '') return <>–</>;
  return <time dateTime={`${iso.slice(0, 10)}T${iso.slice(11, 19)}Z`} title={iso}>{clock(at, undefined, seconds)}</time>;
}

/** How long it takes until a moment; its title has the moment. */
export function Until({ at }: { at: Seconds }) {
  const left = at - Date.now() / 1000;
  return <span title={`${clock(at)}, ${utc(at)}`} class={left <= 0 ? 'is-critical strong' : ''}>{left <= 0 ? 'it has ended' : duration(left)}</span>;
}

const PATHS: Record<string, JSX.Element> = {
  critical: <path d="M5.2 1h5.6L15 5.2v5.6L10.8 15H5.2L1 10.8V5.2zM7 4v5h2V4zm0 6.3v1.9h2v-1.9z" fill-rule="evenodd" />,
  warning: <path d="M8 1.2 15.6 14.6H.4zM7.1 5.8v4.6h1.8V5.8zm0 5.6v1.7h1.8v-1.7z" fill-rule="evenodd" />,
  info: <path d="M8 .8a7.2 7.2 0 1 1 0 14.4A7.2 7.2 0 0 1 8 .8M7.1 7v5.2h1.8V7zm0-3.2v1.9h1.8V3.8z" fill-rule="evenodd" />,
  good: <path d="M8 .8a7.2 7.2 0 1 1 0 14.4A7.2 7.2 0 0 1 8 .8m3.5 3.9L7 9.2 4.9 7.1 3.6 8.4 7 11.8 12.8 6z" fill-rule="evenodd" />,
  idle: <path d="M8 .8a7.2 7.2 0 1 1 0 14.4A7.2 7.2 0 0 1 8 .8m0 1.7a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11" fill-rule="evenodd" />,
  half: <path d="M8 .8a7.2 7.2 0 1 1 0 14.4A7.2 7.2 0 0 1 8 .8m0 1.7v11a5.5 5.5 0 0 0 0-11" fill-rule="evenodd" />,
  cross: <path d="m3.2 1.8 4.8 4.8 4.8-4.8 1.4 1.4L9.4 8l4.8 4.8-1.4 1.4L8 9.4l-4.8 4.8-1.4-1.4L6.6 8 1.8 3.2z" />,
};

export type MarkKind = 'critical' | 'warning' | 'info' | 'good' | 'idle' | 'half' | 'cross';

export function Mark({ kind, tone = kind }: { kind: MarkKind; tone?: string }) {
  return (
    <svg class={`mark is-${tone}`} viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">
      {PATHS[kind]}
    </svg>
  );
}

export const SEVERITY: Record<Severity, string> = { critical: 'Critical', warning: 'Warning', info: 'Note' };

/** A part of a whole as a bar; the text beside it says the same. */
export function Bar({ share, tone = 'plain' }: { share: number; tone?: string }) {
  const width = `${Math.min(100, Math.max(0, share * 100))}%`;
  return (
    <span class={`bar is-${tone}`} aria-hidden="true">
      <span style={{ width }} />
    </span>
  );
}

/** The tone of a bar whose end is bad. */
export function fullness(share: number): string {
  if (share >= 0.98) return 'critical';
  return share >= 0.9 ? 'warning' : 'plain';
}

/** Where the time of a loop goes: its waits for data by stage; the rest is its own work, and waits for other ranks. */
export function Stack({ shares, legend = true }: { shares: WaitShares; legend?: boolean }) {
  const parts = STAGES.map((stage): [Stage, number] => [stage, shares[stage] ?? 0]).filter(([, share]) => share >= 0.001);
  const listed = [...parts].sort(([, one], [, other]) => other - one);
  return (
    <span class="stack-with-legend">
      <span class="bar stack" aria-hidden="true">
        {parts.map(([stage, share]) => (
          <span key={stage} class={`of-${stage}`} style={{ width: `${Math.min(1, share) * 100}%` }} />
        ))}
      </span>
      {legend && (
        <span class="stack-legend">
          {listed.length === 0 && <span class="muted">no waiting</span>}
          {listed.map(([stage, share]) => (
            <span key={stage} class="nowrap">
              <i class={`swatch of-${stage}`} aria-hidden="true" />
              {stage} {percent(share)}
            </span>
          ))}
        </span>
      )}
    </span>
  );
}

/** The part of the time that a rank waits. */
export function exposedShare(shares: WaitShares | undefined): number {
  return Math.min(1, Object.values(shares ?? {}).reduce((sum, share) => sum + (isNumber(share) ? share : 0), 0));
}

/** A number with its unit, right-aligned in cells. */
export function Fact({ name, children }: { name: string; children: ComponentChildren }) {
  return (
    <div class="fact">
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

/** Why an answer is missing, in the place of it. */
export function Missing({ of, loaded }: { of: string; loaded: Loaded<unknown> }) {
  const { error } = loaded;
  if (!error) return <p class="muted wait">The console asks for {of} …</p>;
  if (error instanceof Refused) {
    if (error.status === 401) return null;
    const title =
      error.status === 403 ? `The token has no right to see ${of}.` : error.status === 404 ? `Not found: ${of}.` : `The node refused to show ${of}.`;
    return (
      <div class="refused" role="status">
        <p><Mark kind="warning" /> {title}</p>
        <p class="muted"><Prose text={sentence(error.detail)} /></p>
      </div>
    );
  }
  const why = error instanceof Unreachable ? error.message : `The answer has another form: ${cut(visible(error.message), 200)}`;
  return <p class="refused" role="status"><Mark kind="warning" /> No answer for {of}: {why}.</p>;
}

/** A line under data whose newer version did not come. */
export function Stale({ loaded }: { loaded: Loaded<unknown> }) {
  if (!loaded.error || loaded.data === undefined || loaded.error instanceof Unreachable) return null;
  return <p class="muted stale">As of <Time at={(loaded.at ?? 0) / 1000} seconds />: <Prose text={loaded.error.message} most={200} /></p>;
}
