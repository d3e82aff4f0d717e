// One run: its ranks and where their time goes, its placement, exchange and audit.

import { getPage, type Page } from '../api/client';
import { type Loaded, useAnswer, useAnswers } from '../api/poll';
import { type AuditReport, type EpochCount, type EpochExchange, EXPOSED, type NodeSeries, type NodeStatus, type Overview, type PlacementExplained, type RankOverview, type RunView } from '../api/types';
import { amount, bytes, count, duration, forecast, isNumber, NONE, percent, plural } from '../format';
import { nodeHref, part } from '../route';
import { runLines } from '../series';
import { Chart } from '../ui/chart';
import { Digest, exposedShare, Fact, Mark, Missing, Name, Stack, Stale, Time } from '../ui/parts';
import { Table } from '../ui/table';
import { epochShare } from '../verdict';
import { EpochBar } from './overview';
import { auditRows, hiddenShare, plus, ranges } from './tables';
import { SendersAndReceivers } from './traffic';
import { RunTimeline } from './timeline';
import { Training } from './training';

/** The most nodes that are asked for series, and for their counts of the exchange. */
const ASKED = 8;
/** The most ranks in a chart. */
const LINES = 8;

export function RunPage({ name, query, overview }: { name: string; query: URLSearchParams; overview: Loaded<Overview> }) {
  const path = `v1/runs/${part(name)}`;
  const view = useAnswer<RunView>(path, 30_000);
  const run = overview.data?.runs.find((one) => one.run === name);
  const hosts = view.data?.placement?.hosts ?? [];
  return (
    <>
      <p class="up"><a href="#/runs">Runs</a></p>
      <h1 tabIndex={-1}>Run <Name text={name} most={60} /></h1>
      {!view.data ? <Missing of="this run" loaded={view} /> : (
        <dl class="facts">
          {run ? (
            <>
              <div class="fact wide">
                <dt>Epoch {count(run.epoch)}</dt>
                <dd><span class="usage"><EpochBar run={run} /><span class="usage-text">{percent(epochShare(run))}, {count(run.position)} of {count(run.epoch_samples)} samples</span></span></dd>
              </div>
              <Fact name="Epoch done in">{forecast(run.epoch_ends)}</Fact>
              <Fact name="Samples/s">{amount(run.samples_per_second)}</Fact>
            </>
          ) : <Fact name="Ranks">none reads now</Fact>}
          <Fact name="Attached ranks">{count(view.data.attached)}</Fact>
          <Fact name="Virtual ranks">{count(view.data.run.virtual_ranks)}</Fact>
          <Fact name="Began"><Time at={view.data.run.began} /></Fact>
          {view.data.run.left !== undefined && <Fact name="Last rank left"><Time at={view.data.run.left} /></Fact>}
          <Fact name="Plan"><Digest text={view.data.run.plan} /></Fact>
          <Fact name="Version"><Digest text={view.data.run.version} /></Fact>
          {view.data.room && (
            <div class="fact wide">
              <dt>Its caches need</dt>
              <dd>
                {bytes(view.data.room.needed_bytes)} of {bytes(view.data.room.cache_bytes)}
                {view.data.room.from_store_bytes_per_epoch > 0 && <span class="is-warning">; {bytes(view.data.room.from_store_bytes_per_epoch)} come from the store in each epoch</span>}
              </dd>
            </div>
          )}
        </dl>
      )}
      <Stale loaded={view} />
      {run && (
        <>
          <Ranks ranks={run.readers} total={run.ranks} />
          <RankCharts name={name} ranks={run.readers} />
        </>
      )}
      <Training name={name} query={query} />
      {view.data && (
        <>
          <div class="columns">
            <Placement path={path} />
            <Audit path={path} />
          </div>
          <Exchange name={name} hosts={hosts} />
          {hosts.length > 1 && <SendersAndReceivers path={path} />}
          {hosts.length > 0 && <RunTimeline name={name} path={path} />}
        </>
      )}
    </>
  );
}

function Ranks({ ranks, total }: { ranks: RankOverview[]; total: number }) {
  return (
    <section>
      <h2>{ranks.length < total ? `Ranks that wait most (${ranks.length} of ${total})` : `Ranks (${total})`}</h2>
      <Table
        caption="Ranks, those that wait most first"
        isCaptionHidden
        rows={steady(ranks)}
        id={(rank) => String(rank.rank)}
        empty="No rank reports where its time goes."
        most={16}
        columns={[
          { title: 'Rank', isName: true, cell: (rank) => count(rank.rank) },
          { title: 'Node', cell: (rank) => <a href={nodeHref(rank.node)}><Name text={rank.node} most={24} /></a> },
          { title: 'Samples/s', isNumber: true, cell: (rank) => amount(rank.samples_per_second) },
          {
            title: 'Waits', isNumber: true,
            cell: (rank) => {
              const exposed = exposedShare(rank.wait_shares);
              return <span class={exposed > EXPOSED ? 'is-warning strong' : ''}>{percent(exposed)}</span>;
            },
          },
          { title: 'Where its time goes', kind: 'time', cell: (rank) => <Stack shares={rank.wait_shares} /> },
          { title: 'Own work', isNumber: true, from: 'medium', cell: (rank) => percent(rank.compute_share) },
          ...(ranks.some((rank) => (rank.ranks_share ?? 0) > 0) ? [{ title: 'For other ranks', isNumber: true, from: 'medium' as const, cell: (rank: RankOverview) => percent(rank.ranks_share ?? 0) }] : []),
        ]}
      />
    </section>
  );
}

/** Ranks that wait come first, the worst at the top; the others keep their places from one answer to the next. */
export function steady(ranks: RankOverview[]): RankOverview[] {
  const waiting = (rank: RankOverview): number => {
    const exposed = exposedShare(rank.wait_shares);
    return exposed > EXPOSED ? exposed : 0;
  };
  return [...ranks].sort((one, other) => waiting(other) - waiting(one) || one.rank - other.rank);
}

function RankCharts({ name, ranks }: { name: string; ranks: RankOverview[] }) {
  const all = [...new Set(ranks.map((rank) => rank.node))];
  const nodes = all.slice(0, ASKED);
  const answers = useAnswers<NodeSeries>(nodes.map((node) => `v1/nodes/${part(node)}/series?names=rank_samples_per_second,rank_wait_share&points=90`), 20_000);
  const { times, runs } = runLines(answers.flatMap((answer) => answer.data ?? []));
  const lines = runs.find((run) => run.run === name);
  // The ranks that wait most now, each in its own colour.
  const wanted = ranks.slice(0, LINES).map((rank) => rank.rank).sort((one, other) => one - other);
  const shown = (lines?.ranks ?? []).filter((rank) => wanted.includes(rank.rank));
  const of = ranks.length > LINES ? `, the ${LINES} ranks that wait most` : '';
  return (
    <section>
      <h2>Last hour</h2>
      <div class="charts">
        <Chart title={`Samples per second${of}`} times={times} format={amount} lines={shown.map((rank) => ({ label: `rank ${rank.rank}`, points: rank.samples, colour: wanted.indexOf(rank.rank) }))} />
        <Chart title={`Time that a rank waits for data${of}`} times={times} format={percent} least={0.1} lines={shown.map((rank) => ({ label: `rank ${rank.rank}`, points: rank.exposed, colour: wanted.indexOf(rank.rank) }))} />
      </div>
    </section>
  );
}

const WAITS = { no_ranks: 'for a rank to attach', gathering: 'for all ranks of the launch', copying: 'for the copies of the last step' };
const BECAUSE = {
  host_gone: 'its host is gone',
  host_drains: 'its host drains',
  its_rank: 'its rank reads there',
  host_full: 'its host has no room',
  even_shares: 'all nodes host the same number then',
};

function Placement({ path }: { path: string }) {
  const placement = useAnswer<PlacementExplained>(`${path}/placement`, 30_000);
  const { data } = placement;
  return (
    <section>
      <h2>Placement</h2>
      {!data ? <Missing of="a placement of this run" loaded={placement} /> : (
        <>
          <p>
            {plural(data.partitions.length, 'partition')} of {bytes(data.partition_bytes)} on {plural(data.nodes.filter((node) => node.hosts > 0).length, 'node')}.
            {' '}{data.remote_bytes_per_epoch === 0 && data.moves.length === 0 ? 'Each rank reads its partitions at its own node' : <>Ranks read {bytes(data.remote_bytes_per_epoch)} of an epoch at other nodes</>}
            {data.moves.length > 0 && <>, and {bytes(data.remote_bytes_per_epoch_then)} after {plural(data.moves.length, 'move')}{data.waits ? `, which wait ${WAITS[data.waits] ?? ''}` : ''}</>}.
          </p>
          <Stale loaded={placement} />
          <Table
            caption="Nodes of this placement"
            isCaptionHidden
            rows={data.nodes.slice(0, 1000)}
            id={(node) => node.node}
            most={16}
            columns={[
              { title: 'Node', isName: true, cell: (node) => <a href={nodeHref(node.node)}><Name text={node.node} most={24} /></a> },
              { title: 'Partitions', isNumber: true, cell: (node) => count(node.hosts) },
              { title: 'Room for', isNumber: true, cell: (node) => count(node.room) },
              { title: 'Ranks that read there', cell: (node) => ranges(node.ranks) || NONE },
              {
                title: 'State',
                cell: (node) => (node.draining ? <span class="state"><Mark kind="half" tone="info" /> {node.draining === 'asked' ? 'draining' : node.draining}</span>
                  : node.is_live ? <span class="state"><Mark kind="good" /> live</span> : <span class="state"><Mark kind="cross" tone="critical" /> lost</span>),
              },
            ]}
          />
          {data.moves.length > 0 && (
            <Table
              caption={`Moves to come${data.moves.length > 20 ? `: the first 20 of ${data.moves.length}` : ''}`}
              rows={data.moves.slice(0, 20)}
              id={(move) => String(move.partition)}
              columns={[
                { title: 'Partition', isName: true, cell: (move) => count(move.partition) },
                { title: 'From', cell: (move) => <Name text={move.from} most={24} /> },
                { title: 'To', cell: (move) => <Name text={move.to} most={24} /> },
                { title: 'Reason', cell: (move) => BECAUSE[move.because] ?? String(move.because) },
                { title: 'Copied', isNumber: true, cell: (move) => bytes(move.copied_bytes) },
              ]}
            />
          )}
        </>
      )}
    </section>
  );
}

function Exchange({ name, hosts }: { name: string; hosts: string[] }) {
  const asked = hosts.slice(0, ASKED);
  const answers = useAnswers<NodeStatus>(asked.map((node) => `v1/nodes/${part(node)}/status`), 15_000);
  const epochs = new Map<number, EpochExchange>();
  for (const { data } of answers) {
    for (const of of (data?.exchange ?? []).filter((one: EpochCount) => one.run === name)) {
      const sum = epochs.get(of.epoch);
      epochs.set(of.epoch, sum ? plus(sum, of) : { ...of, waited_micros: Math.min(of.waited_micros, of.sending_micros) });
    }
  }
  const rows = [...epochs].sort(([one], [other]) => other - one).slice(0, 200);
  return (
    <section>
      <h2>Exchange</h2>
      {asked.length < hosts.length && <p class="muted">Of the first {asked.length} of {plural(hosts.length, 'node')}.</p>}
      <ExchangeTable rows={rows.map(([epoch, counts]) => ({ epoch, counts }))} />
    </section>
  );
}

export function ExchangeTable({ rows }: { rows: { run?: string; epoch: number; counts: EpochExchange }[] }) {
  return (
    <Table
      caption="The exchange after each epoch"
      isCaptionHidden
      rows={rows}
      id={(row) => `${row.run ?? ''} ${row.epoch}`}
      empty="No grain has moved yet."
      most={8}
      columns={[
        ...(rows.some((row) => row.run !== undefined) ? [{ title: 'Run', cell: (row: { run?: string }) => <Name text={row.run} most={24} /> }] : []),
        { title: 'After epoch', isName: true, cell: (row) => count(row.epoch) },
        { title: 'Sent', isNumber: true, cell: ({ counts }) => bytes(counts.sent_bytes) },
        { title: 'Received', isNumber: true, cell: ({ counts }) => bytes(counts.received_bytes) },
        {
          title: 'Grains received', isNumber: true, from: 'medium',
          cell: ({ counts }) => `${count(counts.received_grains)} of ${count(counts.expected_grains)}`,
        },
        { title: 'Not sent', isNumber: true, cell: ({ counts }) => <span class={counts.unsent_grains > 0 ? 'is-warning strong' : ''}>{count(counts.unsent_grains)}</span> },
        { title: 'Sending', isNumber: true, from: 'medium', cell: ({ counts }) => duration(counts.sending_micros / 1e6) },
        { title: 'Hidden', isNumber: true, cell: ({ counts }) => percent(hiddenShare(counts)) },
      ]}
    />
  );
}

function Audit({ path }: { path: string }) {
  const [reports = {}] = useAnswers<Page<AuditReport>>([`${path}/audit?limit=1000`], 30_000, getPage<AuditReport>);
  const rows = auditRows(reports.data?.items ?? []);
  return (
    <section>
      <h2>Audit</h2>
      {!reports.data ? <Missing of="audit reports" loaded={reports} /> : (
        <>
          {reports.data.next !== undefined && <p class="muted">The first {count(reports.data.items.length)} reports; <code>shardctl audit</code> has all.</p>}
          <Table
            caption="Reports of ranks at the end of each epoch"
            isCaptionHidden
            rows={rows}
            id={(row) => `${row.epoch}/${row.world}`}
            empty="No rank has reported the end of an epoch."
            most={8}
            columns={[
              { title: 'Epoch', isName: true, cell: (row) => count(row.epoch) },
              { title: 'Ranks that reported', isNumber: true, cell: (row) => `${count(row.ranks)} of ${count(row.world)}` },
              { title: 'Samples read', isNumber: true, cell: (row) => count(row.samples) },
              {
                title: 'State',
                cell: (row) => (row.ranks === row.world ? <span class="state"><Mark kind="good" /> complete</span> : <span class="state"><Mark kind="half" tone="muted" /> {isNumber(row.world) ? `${row.world - row.ranks} to come` : ''}</span>),
              },
            ]}
          />
        </>
      )}
    </section>
  );
}
