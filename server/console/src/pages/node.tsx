// One node: its state, disks, traffic and ranks; and the actions of an administrator.

import { useState } from 'preact/hooks';
import { change } from '../api/client';
import { refreshAll, useAnswer, useAnswers } from '../api/poll';
import { note } from '../api/follow';
import type { Ailment, HealthIssue, NodeRow, NodeRows, NodeSeries, NodeStatus, Reader } from '../api/types';
import { amount, bytes, count, duration, forecast, isNumber, NONE, percent, plural, rate } from '../format';
import { nodeHref, part, runHref } from '../route';
import { find, type Points, times } from '../series';
import { cut, visible } from '../text';
import { Chart, type Line } from '../ui/chart';
import { Dialog } from '../ui/dialog';
import { Fact, Mark, Missing, Name, Prose, Stack, Stale, Time, Until, exposedShare } from '../ui/parts';
import { Table } from '../ui/table';
import { epochShare } from '../verdict';
import { State } from './nodes';
import { Usage } from './overview';
import { ExchangeTable } from './run';

/** A disk that is full within this time is a warning, in seconds. */
const SOON = 4 * 3600;

export function NodePage({ name, mayAct }: { name: string; mayAct: boolean }) {
  const rows = useAnswer<NodeRows>(`v1/cluster/nodes?order=name&search=${encodeURIComponent(name.slice(0, 40))}&offset=0&limit=100`, 5000);
  const row = rows.data?.rows.find((one) => one.id === name);
  // The list may be cut before the node; only a whole one shows that the node is missing.
  const isUnknown = rows.data !== undefined && !row && rows.data.total <= rows.data.rows.length;
  // A lost node has no status: nothing asks for it.
  const isAsked = row ? row.state !== 'lost' : !isUnknown && (rows.data !== undefined || rows.error !== undefined);
  const [status = {}] = useAnswers<NodeStatus>(isAsked ? [`v1/nodes/${part(name)}/status`] : [], 2000);
  const { data } = status;
  return (
    <>
      <p class="up"><a href="#/nodes">Nodes</a></p>
      <div class="title-row">
        <h1 tabIndex={-1}>Node <Name text={name} most={60} /></h1>
        {row && <State state={row.state} />}
        {row && mayAct && <Actions row={row} status={data} />}
      </div>
      {row && <RowFacts row={row} />}
      {isUnknown && <p class="empty">The cluster has no node of this name: it left, or an administrator removed it.</p>}
      {data && isAsked ? <Status status={data} /> : row?.state === 'lost' || isUnknown ? null : <Missing of={`the status of node ${cut(visible(name), 40)}`} loaded={status} />}
      <Stale loaded={status} />
      {data && isAsked && <NodeCharts name={name} limit={data?.cache_limit_bytes} />}
      {data && isAsked && (
        <>
          <Readers readers={data.readers ?? []} />
          <div class="columns">
            <section>
              <h2>Exchange</h2>
              <p>
                Rate <b><Name text={data.exchange_now?.rate ?? 'auto'} /></b>{data.exchange_now?.paused ? <span class="is-warning">, paused</span> : ''}.
                {' '}{(data.exchange_now?.waiting ?? []).length === 0 ? 'No grain waits to be sent.' : (data.exchange_now?.waiting ?? []).slice(0, 5).map((one) => `${bytes(one.bytes)} of ${cut(visible(one.run), 40)} wait to be sent.`).join(' ')}
              </p>
              <ExchangeTable rows={[...data.exchange].sort((one, other) => other.epoch - one.epoch).slice(0, 200).map((one) => ({ run: one.run, epoch: one.epoch, counts: one }))} />
            </section>
            <Peers status={data} />
          </div>
        </>
      )}
    </>
  );
}

function RowFacts({ row }: { row: NodeRow }) {
  const issues = row.issues ?? [];
  return (
    <>
      {issues.length > 0 && (
        <ul class="issues">
          {issues.slice(0, 10).map((issue, at) => <li key={at}><Mark kind="warning" /> <Prose text={issue} /></li>)}
          {issues.length > 10 && <li>{issues.length - 10} more</li>}
        </ul>
      )}
      {row.state === 'lost' && (
        <p>
          The node is a member of the cluster and does not answer at <code><Name text={row.http} most={80} /></code>.
          {row.last_seen !== undefined && <> It was live at <Time at={row.last_seen} seconds />.</>}
          {' '}Other nodes fetch its grains from the store.
        </p>
      )}
    </>
  );
}

function Status({ status }: { status: NodeStatus }) {
  const { machine, metadata, measured } = status;
  const peak = status.cache_peak_bytes;
  const corrupt = status.corrupt_on_disk + status.corrupt_from_peers;
  return (
    <dl class="facts">
      <div class="fact wide">
        <dt>Cache and its limit</dt>
        <dd>
          <Usage used={status.cache_used_bytes} of={status.cache_limit_bytes} text={`${bytes(status.cache_used_bytes)} of ${bytes(status.cache_limit_bytes)}`} />
          <span class={peak > status.cache_limit_bytes ? 'is-warning' : 'muted'}>its runs take {bytes(peak)}</span>
        </dd>
      </div>
      {(machine?.disks ?? []).map((disk) => (
        <div class="fact wide" key={disk.directory}>
          <dt>Disk of the {disk.directory} <code title={cut(visible(disk.path))}><Name text={disk.path} most={36} /></code></dt>
          <dd>
            <Usage used={disk.size_bytes - disk.free_bytes} of={disk.size_bytes} text={`${bytes(disk.free_bytes)} free of ${bytes(disk.size_bytes)}`} isLimit />
            {disk.full && <span class={disk.full.in_s < SOON ? 'is-warning' : 'muted'}>full in {forecast(disk.full)}</span>}
          </dd>
        </div>
      ))}
      <Fact name="Read from the store">{bytes(status.origin_bytes)}</Fact>
      <Fact name="Requests to the store">{count(status.origin_requests)}</Fact>
      <Fact name="Misses">{count(status.misses_from_peers + status.misses_from_origin)}</Fact>
      <Fact name="Sent on request">{bytes(status.served_bytes)}</Fact>
      <Fact name="Corrupt grains"><span class={corrupt > 0 ? 'is-critical strong' : ''}>{corrupt === 0 ? '0' : `${count(status.corrupt_on_disk)} on its disk, ${count(status.corrupt_from_peers)} from nodes`}</span></Fact>
      <Fact name="Disk reads a grain in">{isNumber(measured?.disk?.read_micros) ? duration(measured.disk.read_micros / 1e6) : NONE}</Fact>
      <Fact name="Disk syncs in">{isNumber(measured?.disk?.sync_micros) ? duration(measured.disk.sync_micros / 1e6) : NONE}</Fact>
      {machine && (
        <>
          <Fact name="Processors">{amount(machine.processors)}</Fact>
          <Fact name="Memory">{bytes(machine.resident_bytes)}</Fact>
          {machine.pressure && (
            <div class="fact wide">
              <dt>Part of the time that tasks wait</dt>
              <dd>processor {percent(machine.pressure.cpu)}, storage {percent(machine.pressure.io)}, memory {percent(machine.pressure.memory)}</dd>
            </div>
          )}
          <Fact name="Started"><Time at={machine.start} /></Fact>
          <Fact name="Release"><Name text={machine.release} most={24} /></Fact>
          {machine.certificate_ends !== undefined && <Fact name="Certificate ends in"><Until at={machine.certificate_ends} /></Fact>}
        </>
      )}
      {metadata && (
        <div class="fact wide">
          <dt>Metadata (term {count(metadata.epoch)})</dt>
          <dd>
            {metadata.trouble !== undefined && <span class="is-critical strong"><Prose text={metadata.trouble} most={200} /> </span>}
            copy of {bytes(metadata.copy_bytes)}{metadata.copied_at !== undefined && <>, taken <Time at={metadata.copied_at} seconds /></>}{metadata.is_behind && `, ${metadata.lag_s} s behind`}
            {metadata.copy_trouble !== undefined && <span class="is-warning"> <Prose text={metadata.copy_trouble} most={200} /></span>}
          </dd>
        </div>
      )}
    </dl>
  );
}

/** The series of the traffic, by name, with their names on the page; and charts with series by name, labels and name. */
const TRAFFIC: [string, string][] = [
  ['origin_read_bytes_per_second', 'from the store'],
  ['served_bytes_per_second', 'sent on request'],
  ['exchange_sent_bytes_per_second', 'exchange, sent'],
  ['exchange_received_bytes_per_second', 'exchange, received'],
];
const SOURCES: Record<string, string> = { peer: 'from nodes', origin: 'from the store' };
const CHARTS: { title: string; format: (value: unknown) => string; least?: number; lines: [string, Record<string, string>, string][] }[] = [
  { title: 'Disk latency', format: duration, lines: [['disk_read_seconds', {}, 'read a grain'], ['disk_sync_seconds', {}, 'make durable']] },
  { title: 'Processors', format: amount, lines: [['process_processors', {}, 'in use']] },
  {
    title: 'Time that tasks of the machine wait', format: percent, least: 0.1,
    lines: [['pressure_share', { resource: 'cpu' }, 'for a processor'], ['pressure_share', { resource: 'io' }, 'for storage'], ['pressure_share', { resource: 'memory' }, 'for memory']],
  },
];

function NodeCharts({ name, limit }: { name: string; limit: number | undefined }) {
  const series = useAnswer<NodeSeries>(`v1/nodes/${part(name)}/series?names=cache_,disk_,origin_,miss_,served_,exchange_,corrupt_,process_,pressure_&points=120`, 15_000);
  const { data } = series;
  if (!data) return <Missing of="the last hour of the node" loaded={series} />;
  const at = times(data);
  const points = (of: string, labels: Record<string, string> = {}): Points => find(data, of, labels)?.points ?? [];
  const flat = (value: number | undefined): Points => at.map(() => value ?? null);
  const labelled = data.series.filter((one) => one.name === 'miss_bytes_per_second');
  const cache: Line[] = [
    { label: 'in use', points: points('cache_used_bytes') },
    { label: 'limit', points: points('cache_limit_bytes').length > 0 ? points('cache_limit_bytes') : flat(limit), colour: 7, dashed: true },
  ];
  const free = data.series.filter((one) => one.name === 'disk_free_bytes').slice(0, 4);
  return (
    <section>
      <h2>Last hour</h2>
      <div class="charts three">
        <Chart title="Traffic" times={at} format={rate} isBinary lines={TRAFFIC.map(([of, label]) => ({ label, points: points(of) }))} />
        <Chart
          title="Misses"
          times={at}
          format={rate}
          isBinary
          lines={labelled.map((one) => ({ label: SOURCES[one.labels?.['from'] ?? ''] ?? `from ${one.labels?.['from'] ?? 'elsewhere'}`, points: one.points }))}
        />
        <Chart title="Cache" times={at} format={bytes} isBinary lines={cache} />
        <Chart title="Free on disk" times={at} format={bytes} isBinary lines={free.map((one) => ({ label: one.labels?.['directory'] ?? 'disk', points: one.points }))} />
        {CHARTS.map((chart) => (
          <Chart key={chart.title} title={chart.title} times={at} format={chart.format} least={chart.least ?? 0} lines={chart.lines.map(([of, labels, label]) => ({ label, points: points(of, labels) }))} />
        ))}
      </div>
      <Stale loaded={series} />
    </section>
  );
}

function Readers({ readers }: { readers: Reader[] }) {
  return (
    <section>
      <h2>Ranks that read here ({count(readers.length)})</h2>
      <Table
        caption="Ranks that read at this node"
        isCaptionHidden
        rows={readers.slice(0, 200)}
        most={16}
        id={(reader) => `${reader.run} ${reader.rank}`}
        empty="No rank reads at this node."
        columns={[
          { title: 'Run', isName: true, cell: (reader) => <a href={runHref(reader.run)}><Name text={reader.run} most={28} /></a> },
          { title: 'Rank', isNumber: true, cell: (reader) => count(reader.rank) },
          { title: 'Epoch', isNumber: true, cell: (reader) => <>{count(reader.epoch)}{isNumber(reader.position) && <span class="muted">, {percent(epochShare(reader))}</span>}</> },
          { title: 'Samples/s', isNumber: true, cell: (reader) => amount(reader.recent?.samples_per_second) },
          { title: 'Waits', isNumber: true, cell: (reader) => (reader.recent ? percent(exposedShare(reader.recent.wait_shares)) : NONE) },
          { title: 'Where its time goes', kind: 'time', from: 'medium', cell: (reader) => (reader.recent ? <Stack shares={reader.recent.wait_shares} /> : NONE) },
          { title: 'Waits since', from: 'wide', cell: (reader) => <Time at={reader.exposed_since} /> },
          { title: 'Transport', from: 'medium', cell: (reader) => String(reader.transport) },
        ]}
      />
    </section>
  );
}

const AILMENTS: Record<Ailment, string> = {
  slow_reads: 'its disk is slow to read',
  slow_syncs: 'its disk is slow to write',
  slow_answers: 'it is slow to answer',
  silence: 'it does not answer',
  wrong_grains: 'it sends wrong bytes',
};

function Peers({ status }: { status: NodeStatus }) {
  const peers = status.measured?.peers ?? [];
  const issues = status.health_issues ?? [];
  return (
    <section>
      <h2>Other nodes, as this one measures them</h2>
      {issues.length > 0 && (
        <ul class="issues">
          {issues.slice(0, 10).map((issue: HealthIssue, at) => (
            <li key={at}><Mark kind="warning" /> Node <a href={nodeHref(issue.node)}><Name text={issue.node} most={24} /></a>: {AILMENTS[issue.what] ?? String(issue.what)}.</li>
          ))}
        </ul>
      )}
      <Table
        caption="Other nodes, as this one measures them"
        isCaptionHidden
        rows={[...peers].sort((one, other) => (other.answer_micros ?? 0) - (one.answer_micros ?? 0))}
        id={(peer) => peer.node}
        empty="This node has asked no other node lately."
        most={16}
        columns={[
          { title: 'Node', isName: true, cell: (peer) => <a href={nodeHref(peer.node)}><Name text={peer.node} most={24} /></a> },
          { title: 'Answers in', isNumber: true, cell: (peer) => (isNumber(peer.answer_micros) ? duration(peer.answer_micros / 1e6) : NONE) },
          { title: 'Silences', isNumber: true, cell: (peer) => amount(peer.silences) },
          { title: 'Wrong grains', isNumber: true, cell: (peer) => <span class={peer.wrong_grains >= 0.5 ? 'is-critical strong' : ''}>{amount(peer.wrong_grains)}</span> },
        ]}
      />
    </section>
  );
}

type Action = 'drain' | 'host' | 'pause' | 'resume' | 'rate' | 'remove';

function Actions({ row, status }: { row: NodeRow; status: NodeStatus | undefined }) {
  const [open, setOpen] = useState<Action>();
  const [done, setDone] = useState('');
  const isLost = row.state === 'lost';
  const isDraining = row.draining;
  const isPaused = status?.exchange_now?.paused === true;
  const button = (action: Action, text: string, kind = ''): preact.JSX.Element => <button type="button" class={kind} onClick={() => setOpen(action)}>{text}</button>;
  const close = (): void => setOpen(undefined);
  const finish = (text: string): void => {
    setDone(text);
    note({ mark: 'info', text });
    refreshAll();
  };
  return (
    <div class="actions">
      {!isLost && (isDraining ? button('host', 'End the drain …') : button('drain', 'Drain …'))}
      {!isLost && (isPaused ? button('resume', 'Resume the exchange …') : button('pause', 'Pause the exchange …'))}
      {!isLost && button('rate', 'Exchange rate …')}
      {isLost && button('remove', 'Remove …', 'danger')}
      <p class="done" role="status">{done}</p>
      {open !== undefined && <Question action={open} row={row} status={status} close={close} finish={finish} />}
    </div>
  );
}

function Question({ action, row, status, close, finish }: { action: Action; row: NodeRow; status: NodeStatus | undefined; close: () => void; finish: (text: string) => void }) {
  const name = row.id;
  const shown = cut(visible(name), 40);
  const [kind, setKind] = useState('auto');
  const [size, setSize] = useState('50');
  const partitions = plural(row.hosted_partitions, 'partition');
  const ask = (title: string, confirm: string, act: () => Promise<void>, text: string, effect: preact.ComponentChildren, more: { isDangerous?: boolean; typed?: string } = {}): preact.JSX.Element => (
    <Dialog title={title} confirm={confirm} close={close} act={async () => { await act(); finish(text); }} {...more}>{effect}</Dialog>
  );
  switch (action) {
    case 'drain':
      return ask(`Drain node ${shown}?`, 'Drain', () => change('PUT', `v1/nodes/${part(name)}/drain`, { leave: false }), `Node ${shown} drains`,
        <p>Its {partitions} move to other nodes, a few at a time. It gets no new ones until you end the drain. Training continues.</p>);
    case 'host':
      return ask(`End the drain of node ${shown}?`, 'End the drain', () => change('DELETE', `v1/nodes/${part(name)}/drain`), `Node ${shown} may host again`,
        <p>The node may host partitions again. Some move to it, a few at a time.</p>);
    case 'pause':
      return ask(`Pause the exchange of node ${shown}?`, 'Pause', () => change('PUT', 'v1/exchange', { node: name, paused: true }), `The exchange of node ${shown} is paused`,
        <p>The node sends no grain before the next epoch until you resume. Ranks that need such grains wait while other nodes request them.</p>, { isDangerous: true });
    case 'resume':
      return ask(`Resume the exchange of node ${shown}?`, 'Resume', () => change('PUT', 'v1/exchange', { node: name, paused: false }), `The exchange of node ${shown} continues`,
        <p>The node sends its waiting grains at its rate: <b><Name text={status?.exchange_now?.rate ?? 'auto'} /></b>.</p>);
    case 'rate': {
      const chosen = kind === 'most' ? `${size}MiB` : kind;
      const options: [string, string][] = [
        ['auto', 'As fast as ranks read (auto)'],
        ['unlimited', 'Unlimited'],
        ['default', 'The setting of all nodes (default)'],
      ];
      return ask(`Exchange rate of node ${shown}`, 'Set the rate', async () => {
        if (kind === 'most' && !/^[1-9][0-9]{0,5}$/.test(size)) throw new Error('Enter a whole number of MiB per second, from 1 to 999,999.');
        await change('PUT', 'v1/exchange', { node: name, rate: chosen });
      }, `The exchange rate of node ${shown} is ${chosen}`,
        <>
          <p>The limit holds for all runs of the node together, also after it starts again. A low one makes ranks wait at the next epoch.</p>
          <fieldset class="options">
            <legend>Rate, now <Name text={status?.exchange_now?.rate ?? 'auto'} /></legend>
            {options.map(([value, text]) => (
              <label key={value}><input type="radio" name="rate" checked={kind === value} onChange={() => setKind(value)} /> {text}</label>
            ))}
            <label>
              <input type="radio" name="rate" checked={kind === 'most'} onChange={() => setKind('most')} /> At most{' '}
              <input class="size" type="text" inputMode="numeric" aria-label="MiB per second" value={size} onFocus={() => setKind('most')} onInput={(event) => setSize(event.currentTarget.value.trim())} /> MiB/s
            </label>
          </fieldset>
        </>);
    }
    default:
      return ask(`Remove node ${shown}?`, 'Remove the node', () => change('DELETE', `v1/certificates/${part(name)}`), `Node ${shown} is removed`,
        <p>The cluster revokes the certificates of the node, and other nodes refuse its connections. You cannot undo it: the machine has to join again with a new token. Data in the store stays.</p>,
        { isDangerous: true, typed: name });
  }
}

