// The shards and grains that ranks read most, or wait for longest: of the cluster, or of one node.

import { useState } from 'preact/hooks';
import { useAnswer } from '../api/poll';
import type { Hot, HotGrain, HotOrder, HotShard, NodeRows } from '../api/types';
import { bytes, count, duration, isNumber, NONE, percent, plural } from '../format';
import { listHref, nodeHref, part, shardHref } from '../route';
import { cut, visible } from '../text';
import { Digest, Missing, Name, Stale } from '../ui/parts';
import { type Column, LongTable } from '../ui/table';

const ORDERS: [HotOrder, string, string][] = [
  ['reads', 'Reads', 'the most reads'],
  ['bytes', 'Bytes', 'the most bytes'],
  ['misses', 'Misses', 'the most misses'],
  ['latency', 'Wait for a miss', 'the longest misses'],
];
const LIMITS = [50, 200, 1000];

export function ShardsPage({ query }: { query: URLSearchParams }) {
  const by = ORDERS.find(([name]) => name === query.get('by')) ?? ORDERS[0];
  const [order, , title] = by as [HotOrder, string, string];
  const node = query.get('node') ?? '';
  const limit = LIMITS.find((one) => String(one) === query.get('limit')) ?? LIMITS[0];
  const kind = query.get('kind') === 'grains' ? 'grains' : 'shards';
  const go = (next: { by?: string; node?: string; limit?: string; kind?: string }): void => {
    const { by: chosen = order, node: of = node, limit: most = String(limit), kind: what = kind } = next;
    location.replace(listHref('shards', { by: chosen, node: of, limit: most === String(LIMITS[0]) ? '' : most, kind: what === 'shards' ? '' : what }));
  };
  const path = node === '' ? `v1/hot?by=${order}&limit=${limit}` : `v1/nodes/${part(node)}/hot?by=${order}&limit=${limit}`;
  // The cluster's answer is one question to each node.
  const hot = useAnswer<Hot>(path, 15_000);
  const rows: (HotShard | HotGrain)[] = (kind === 'grains' ? hot.data?.grains : hot.data?.shards) ?? [];
  const most = Math.max(1e-9, ...rows.map((row) => row.reads));

  const columns: Column<HotShard | HotGrain>[] = [
    { title: kind === 'grains' ? 'Grain' : 'Shard', isName: true, cell: (row) => (
      <span class="nowrap"><a href={shardHref(row.shard)}><Digest text={row.shard} /></a>{'first_row' in row && <span class="muted"> row {count(row.first_row)}</span>}</span>
    ) },
    { title: 'Reads', isNumber: true, kind: 'reads', cell: (row) => (
      <span class="heat"><span class="heat-bar" aria-hidden="true"><span style={{ width: `${Math.min(100, (row.reads / most) * 100)}%` }} /></span>
        <span>{faded(row.reads)}{isNumber(row.reads_error) && row.reads_error >= 0.5 && <span class="muted" title="The count may be lower by this"> ± {faded(row.reads_error)}</span>}</span></span>
    ) },
    { title: 'Bytes', isNumber: true, cell: (row) => bytes(row.bytes) },
    { title: 'Misses', isNumber: true, cell: (row) => <>{faded(row.misses)}<span class="from-medium muted"> {row.reads > 0 ? percent(Math.min(1, row.misses / row.reads)) : ''}</span></> },
    { title: 'Wait for a miss', isNumber: true, cell: (row) => (isNumber(row.miss_seconds) ? duration(row.miss_seconds) : NONE) },
    ...(node === '' ? [{ title: 'Read at', from: 'medium' as const, kind: 'read-at', cell: (row: HotShard | HotGrain) => <NodeNames names={row.nodes ?? []} /> }] : []),
  ];
  return (
    <div class="filling">
      <div class="title-row">
        <h1 tabIndex={-1}>Shards</h1>
        <div class="tools">
          <fieldset class="choice">
            <legend class="visually-hidden">Order</legend>
            {ORDERS.map(([name, text]) => (
              <label key={name}><input type="radio" name="by" checked={name === order} onChange={() => go({ by: name })} /><span>{text}</span></label>
            ))}
          </fieldset>
          <fieldset class="choice">
            <legend class="visually-hidden">Unit</legend>
            <label><input type="radio" name="kind" checked={kind === 'shards'} onChange={() => go({ kind: 'shards' })} /><span>Shards</span></label>
            <label><input type="radio" name="kind" checked={kind === 'grains'} onChange={() => go({ kind: 'grains' })} /><span>Grains</span></label>
          </fieldset>
          <NodeChoice key={node} node={node} choose={(name) => go({ node: name })} />
          <label class="field inline">
            <span>Rows</span>
            <select value={String(limit)} onChange={(event) => go({ limit: event.currentTarget.value })}>
              {LIMITS.map((one) => <option key={one} value={String(one)}>{count(one)}</option>)}
            </select>
          </label>
        </div>
      </div>
      {!hot.data ? <Missing of={node === '' ? 'the hot shards' : `the hot shards of ${cut(visible(node), 40)}`} loaded={hot} /> : (
        <>
          <p class="muted note">
            The {count(rows.length)} {kind} with {title}{node === '' ? ', over all nodes' : <>, at node <Name text={node} most={40} /></>}.
            {' '}A read counts half after {duration(hot.data.half_life_s)}.
            {(hot.data.unanswered?.length ?? 0) > 0 && <> {plural(hot.data.unanswered?.length ?? 0, 'node')} did not answer.</>}
          </p>
          <Stale loaded={hot} />
          {rows.length === 0 ? <p class="muted empty">No rank has read lately.</p> : (
            <LongTable
              caption={`${kind === 'grains' ? 'Grains' : 'Shards'} with ${title}`}
              columns={columns}
              total={rows.length}
              row={(index) => rows[index]}
              id={(row) => ('first_row' in row ? `${row.shard}/${row.first_row}` : row.shard)}
              list={path + kind}
              isLow
            />
          )}
        </>
      )}
    </div>
  );
}

/** A count that decays has tenths while it is small. */
function faded(value: unknown): string {
  return isNumber(value) && value < 9.95 ? value.toFixed(1) : count(value);
}

function NodeNames({ names }: { names: string[] }) {
  const shown = names.slice(0, 3);
  return (
    <span title={names.length > 3 ? cut(visible(names.join(', '))) : undefined}>
      {shown.map((name, at) => <span key={name}>{at > 0 && ', '}<a href={nodeHref(name)}><Name text={name} most={16} /></a></span>)}
      {names.length > 3 && <span class="muted"> and {names.length - 3} more</span>}
    </span>
  );
}

/** One node, found by a part of its name, or all. */
function NodeChoice({ node, choose }: { node: string; choose: (name: string) => void }) {
  const [text, setText] = useState(node);
  const found = useAnswer<NodeRows>(`v1/cluster/nodes?order=name&search=${encodeURIComponent(text.slice(0, 40))}&offset=0&limit=10`, 60_000);
  const names = (found.data?.rows ?? []).map((row) => row.id);
  return (
    <form class="node-choice" onSubmit={(event) => { event.preventDefault(); choose(text.trim()); }}>
      <label class="field inline">
        <span>Node</span>
        <input
          type="search" list="node-names" value={text} placeholder="all nodes" autocomplete="off" spellcheck={false} maxLength={40}
          onInput={(event) => {
            const value = event.currentTarget.value;
            setText(value);
            if (value === '' || names.includes(value)) choose(value);
          }}
        />
      </label>
      <datalist id="node-names">{names.map((name) => <option key={name} value={name} />)}</datalist>
    </form>
  );
}
