// All nodes: sorted and searched by the node that answers, and fetched once they come into view.

import { useEffect, useRef, useState } from 'preact/hooks';
import { useWindows } from '../api/poll';
import type { NodeRow, RowOrder, RowState } from '../api/types';
import { amount, bytes, count, isNumber, NONE, plural } from '../format';
import { listHref, nodeHref } from '../route';
import { Mark, type MarkKind, Missing, Name } from '../ui/parts';
import { type Column, LongTable } from '../ui/table';
import { Usage } from './overview';

const ORDERS: [RowOrder, string][] = [
  ['name', 'Name'],
  ['state', 'State, the worst first'],
  ['disk', 'Disk, the fullest first'],
  ['cache', 'Cache, the fullest first'],
  ['origin', 'Bytes from the store'],
  ['processors', 'Processors in use'],
];

export const STATES: Record<RowState, [MarkKind, string, string]> = {
  live: ['good', 'good', 'live'],
  draining: ['half', 'info', 'draining'],
  unhealthy: ['warning', 'warning', 'unhealthy'],
  unanswered: ['idle', 'warning', 'no answer'],
  lost: ['cross', 'critical', 'lost'],
};

export function State({ state }: { state: RowState }) {
  const [kind, tone, text] = STATES[state] ?? ['idle', 'muted', String(state)];
  return <span class="state"><Mark kind={kind} tone={tone} /> {text}</span>;
}

export function NodesPage({ query }: { query: URLSearchParams }) {
  const order = ORDERS.find(([name]) => name === query.get('order'))?.[0] ?? 'name';
  const search = (query.get('search') ?? '').slice(0, 40);
  const [text, setText] = useState(search);
  // The list follows the typing a little later.
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  useEffect(() => () => clearTimeout(timer.current), []);
  const go = (next: { order?: string; search?: string }): void => {
    location.replace(listHref('nodes', { order: next.order ?? order, search: next.search ?? search }));
  };
  const type = (value: string): void => {
    setText(value);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => go({ search: value.trim() }), 200);
  };

  const list = `order=${order}&search=${encodeURIComponent(search)}`;
  const { total, first, row, onView } = useWindows<NodeRow>(`v1/cluster/nodes?${list}&`, 5000);
  const sort = (by: RowOrder): NonNullable<Column<NodeRow>['sort']> => ({ isOn: order === by, isDescending: by !== 'name', choose: () => go({ order: by }) });

  const columns: Column<NodeRow>[] = [
    {
      title: 'Node', isName: true, kind: 'node-name', sort: sort('name'),
      cell: (node) => (
        <>
          <a href={nodeHref(node.id)}><Name text={node.id} most={40} /></a>
          <span class="narrow-only"><State state={node.state} /></span>
        </>
      ),
    },
    { title: 'State', from: 'medium', kind: 'node-state', sort: sort('state'), cell: (node) => <span title={(node.issues ?? []).join('\n') || undefined}><State state={node.state} /></span> },
    {
      title: 'Disk free', kind: 'node-bar', sort: sort('disk'),
      cell: (node) => <Usage used={(node.disk_size_bytes ?? 0) - (node.disk_free_bytes ?? 0)} of={node.disk_size_bytes} text={bytes(node.disk_free_bytes)} isLimit />,
    },
    { title: 'Cache', kind: 'node-bar', sort: sort('cache'), cell: (node) => <Usage used={node.cache_used_bytes} of={node.cache_limit_bytes} text={bytes(node.cache_used_bytes)} /> },
    { title: 'From the store', isNumber: true, from: 'medium', sort: sort('origin'), cell: (node) => bytes(node.origin_bytes) },
    { title: 'Processors', isNumber: true, from: 'medium', sort: sort('processors'), cell: (node) => amount(node.processors) },
    { title: 'Memory', isNumber: true, from: 'wide', cell: (node) => bytes(node.resident_bytes) },
    { title: 'Ranks', isNumber: true, from: 'medium', cell: (node) => count(node.ranks) },
    { title: 'Partitions', isNumber: true, from: 'wide', cell: (node) => count(node.hosted_partitions) },
    {
      title: 'Corrupt', isNumber: true, from: 'medium',
      cell: (node) => (node.corrupt_grains ? <span class="is-critical strong">{count(node.corrupt_grains)}</span> : isNumber(node.corrupt_grains) ? '0' : NONE),
    },
    { title: 'Release', from: 'wide', cell: (node) => (node.release === undefined ? NONE : <Name text={node.release} most={16} />) },
  ];
  return (
    <div class="filling">
      <div class="title-row">
        <h1 tabIndex={-1}>Nodes</h1>
        <form class="tools" role="search" onSubmit={(event) => { event.preventDefault(); clearTimeout(timer.current); go({ search: text.trim() }); }}>
          <label class="field inline">
            <span>Search</span>
            <input type="search" value={text} maxLength={40} placeholder="part of a name" autocomplete="off" spellcheck={false} onInput={(event) => type(event.currentTarget.value)} />
          </label>
          <label class="field inline">
            <span>Order</span>
            <select value={order} onChange={(event) => go({ order: event.currentTarget.value })}>
              {ORDERS.map(([name, title]) => <option key={name} value={name}>{title}</option>)}
            </select>
          </label>
        </form>
        <p class="muted total" role="status">{total === undefined ? '' : search === '' ? plural(total, 'node') : `${plural(total, 'node')} with “${search}”`}</p>
      </div>
      {total === undefined && !first.data ? <Missing of="the list of nodes" loaded={first} /> : total === 0 ? (
        <p class="muted empty">No node has “{search}” in its name.</p>
      ) : (
        <LongTable caption="Nodes" columns={columns} total={total ?? 0} row={row} id={(node) => node.id} list={list} onView={onView} />
      )}
    </div>
  );
}
