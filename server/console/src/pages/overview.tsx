// Is training stalled on data, in which stage, on which rank, since when, done when; and the findings.

import { useEffect, useRef, useState } from 'preact/hooks';
import { journal } from '../api/follow';
import { type Loaded, useAnswer, useAnswers } from '../api/poll';
import { EXPOSED, type Finding, type NodeRows, type NodeSeries, type Overview, type RunOverview } from '../api/types';
import { amount, bytes, count, forecast, isNumber, NONE, percent, plural } from '../format';
import { short } from '../findings';
import { listHref, nodeHref, part, runHref } from '../route';
import { runLines } from '../series';
import { useStore } from '../store';
import { sentence } from '../text';
import { Chart } from '../ui/chart';
import { Bar, Fact, fullness, Mark, type MarkKind, Missing, Name, Prose, SEVERITY, Stack, Stale, exposedShare, Time } from '../ui/parts';
import { Table } from '../ui/table';
import { epochShare, type Tone, verdict } from '../verdict';

/** Findings that are shown at first, and of each kind. */
const FINDINGS = 6;
const OF_A_KIND = 2;
/** Runs that are shown at first, and the most lines of a chart. */
const RUNS = 8;
/** The most nodes that are asked for series. */
const ASKED = 8;

export function OverviewPage({ overview }: { overview: Loaded<Overview> }) {
  const { data } = overview;
  if (!data) {
    return (
      <>
        <h1 tabIndex={-1} class="visually-hidden">Overview</h1>
        <Missing of="the overview" loaded={overview} />
      </>
    );
  }
  return (
    <>
      <Verdict overview={data} />
      <Stale loaded={overview} />
      <Findings findings={data.findings} unlisted={data.more_findings ?? 0} />
      <Runs runs={data.runs} unlisted={data.more_runs ?? 0} />
      <LastHour runs={data.runs} />
      <div class="columns">
        <Disks />
        <JournalList />
      </div>
    </>
  );
}

const MARKS: Record<Tone, [MarkKind, string]> = {
  good: ['good', 'good'],
  bad: ['warning', 'warning'],
  unknown: ['half', 'muted'],
  idle: ['idle', 'muted'],
};

function Verdict({ overview }: { overview: Overview }) {
  const { tone, text } = verdict(overview);
  const [kind, colour] = MARKS[tone];
  const { nodes, totals } = overview;
  const states: [number, string, string][] = [
    [nodes.lost, 'lost', 'critical'],
    [nodes.unanswered, 'without an answer', 'warning'],
    [nodes.unhealthy, 'unhealthy', 'warning'],
    [nodes.draining, 'draining', 'info'],
  ];
  // Who reads by ear hears of a change of the answer, and not of each percent.
  const [spoken, setSpoken] = useState('');
  const last = useRef(tone);
  useEffect(() => {
    if (last.current !== tone) setSpoken(text);
    last.current = tone;
  }, [tone]);
  return (
    <section class="verdict" aria-label="Answer">
      <h1 tabIndex={-1} class={`is-${tone}`}>
        <Mark kind={kind} tone={colour} /> <span>{text}.</span>
      </h1>
      <p class="visually-hidden" role="status">{spoken}</p>
      <p class="counts">
        <span><a href="#/nodes">{plural(nodes.live, 'node')} live</a></span>
        {states.filter(([number]) => number > 0).map(([number, name, mark]) => (
          <span key={name}>
            <a href={listHref('nodes', { order: 'state' })}><Mark kind={mark as MarkKind} /> {count(number)} {name}</a>
          </span>
        ))}
        <span>caches {bytes(totals.cache_used_bytes)} of {bytes(totals.cache_limit_bytes)}</span>
        <span class="from-medium">read from the store {bytes(totals.origin_bytes)}</span>
        <span class="from-medium">exchanged {bytes(totals.exchange_bytes)}</span>
        {totals.corrupt_grains > 0 && <span>{plural(totals.corrupt_grains, 'corrupt grain')} replaced</span>}
      </p>
    </section>
  );
}

function Findings({ findings, unlisted }: { findings: Finding[]; unlisted: number }) {
  const [isLong, setLong] = useState(false);
  if (findings.length === 0) return null;
  const few = short(findings, FINDINGS, OF_A_KIND);
  const shown = isLong ? findings.map((finding) => ({ finding, more: 0 })) : few;
  return (
    <section class="findings" aria-labelledby="findings-title">
      <h2 id="findings-title" class="visually-hidden">{plural(findings.length + unlisted, 'finding')}</h2>
      <ol>
        {shown.map(({ finding, more }, at) => (
          <li key={at} class={`finding is-${finding.severity}`}>
            <div class="what">
              <Mark kind={finding.severity} />
              <div>
                <h3><Prose text={sentence(finding.title)} most={160} /></h3>
                <p class="meta">
                  <span class={`severity is-${finding.severity}`}>{SEVERITY[finding.severity] ?? finding.severity}</span>
                  {finding.node !== undefined && <a href={nodeHref(finding.node)}><Name text={finding.node} most={24} /></a>}
                  {finding.run !== undefined && <a href={runHref(finding.run)}><Name text={finding.run} most={24} /></a>}
                  {finding.since !== undefined && <span>since <Time at={finding.since} /></span>}
                  {more > 0 && <span class="strong">{count(more)} more of this kind</span>}
                </p>
              </div>
            </div>
            <p class="cause"><Prose text={finding.cause} /></p>
            <p class="remedy"><span class="label">Remedy</span> <Prose text={finding.remedy} /></p>
          </li>
        ))}
      </ol>
      {findings.length > few.length && (
        <button type="button" class="more" onClick={() => setLong(!isLong)}>
          {isLong ? 'Show the worst only' : unlisted > 0 ? `Show the worst ${findings.length}` : `Show all ${findings.length} findings`}
        </button>
      )}
      {unlisted > 0 && <p class="muted">The node lists the worst {count(findings.length)} of {plural(findings.length + unlisted, 'finding')}.</p>}
    </section>
  );
}

function Runs({ runs, unlisted }: { runs: RunOverview[]; unlisted: number }) {
  const [isLong, setLong] = useState(false);
  if (runs.length === 0) {
    return (
      <section aria-labelledby="runs-title">
        <h2 id="runs-title">Runs</h2>
        <p class="muted">No rank reads at any node. <a href="#/runs">All runs</a></p>
      </section>
    );
  }
  const shown = isLong ? runs : runs.slice(0, RUNS);
  return (
    <section aria-labelledby="runs-title">
      <h2 id="runs-title">{runs.length + unlisted === 1 ? 'Run' : `Runs (${count(runs.length + unlisted)})`}</h2>
      {shown.map((run) => <RunCard key={run.run} run={run} />)}
      {runs.length > RUNS && (
        <button type="button" class="more" onClick={() => setLong(!isLong)}>{isLong ? 'Show fewer runs' : unlisted > 0 ? `Show the ${runs.length} runs that wait most` : `Show all ${runs.length} runs`}</button>
      )}
      {unlisted > 0 && <p class="muted">The node lists the {count(runs.length)} runs that wait most. <a href="#/runs">All runs</a></p>}
    </section>
  );
}

function RunCard({ run }: { run: RunOverview }) {
  const share = epochShare(run);
  const { exchange, waits } = run;
  const [worst] = run.readers;
  return (
    <article class="run-card" aria-label={`Run ${run.run}`}>
      <h3><a href={runHref(run.run)}><Name text={run.run} most={48} /></a></h3>
      <div class="run-epoch">
        <EpochBar run={run} />
        <span class="nowrap">epoch {count(run.epoch)}, {percent(share)}</span>
      </div>
      <dl class="facts">
        <Fact name="Epoch done in">{run.epoch_ends ? forecast(run.epoch_ends) : NONE}</Fact>
        <Fact name="Samples/s">{amount(run.samples_per_second)}</Fact>
        <Fact name={waits ? `Rank ${waits.rank} waits` : 'Waiting'}>
          {waits ? <span class={waits.exposed_share > EXPOSED ? 'is-warning strong' : ''}>{percent(waits.exposed_share)}</span> : 'not reported'}
        </Fact>
        {worst && (
          <div class="fact wide">
            <dt>Where its time goes</dt>
            <dd><Stack shares={worst.wait_shares} /></dd>
          </div>
        )}
        {run.readers.length > 1 && (
          <div class="fact">
            <dt>{run.readers.length < run.ranks ? `Ranks (${run.readers.length} of ${run.ranks})` : `Ranks (${run.ranks})`}</dt>
            <dd><RankStrip run={run} /></dd>
          </div>
        )}
        <Fact name="Exchange hidden">
          {isNumber(exchange.hidden_share) ? percent(exchange.hidden_share) : NONE}
          {exchange.paused_nodes > 0 && <span class="is-warning"> paused on {plural(exchange.paused_nodes, 'node')}</span>}
        </Fact>
        <Fact name="To be sent">{bytes(exchange.waiting_bytes)}</Fact>
      </dl>
    </article>
  );
}

export function EpochBar({ run }: { run: { run: string; epoch: number; position?: number; epoch_samples?: number } }) {
  const share = epochShare(run);
  return (
    <span
      class="bar progress"
      role="progressbar"
      aria-label={`Epoch ${run.epoch} of run ${run.run}`}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={Math.floor(share * 100)}
    >
      <span style={{ width: `${share * 100}%` }} />
    </span>
  );
}

/** A column for each rank: the part of its time that it waits. */
export function RankStrip({ run }: { run: RunOverview }) {
  const ranks = [...run.readers].sort((one, other) => one.rank - other.rank);
  const list = ranks.map((rank) => `rank ${rank.rank} ${percent(exposedShare(rank.wait_shares))}`);
  return (
    <span class="strip" role="img" aria-label={`Waiting: ${list.join(', ')}`} title={list.join('\n')}>
      {ranks.map((rank) => {
        const exposed = exposedShare(rank.wait_shares);
        return (
          <span key={rank.rank} class={exposed > EXPOSED ? 'is-waiting' : ''}>
            <span style={{ height: `${Math.max(4, exposed * 100)}%` }} />
          </span>
        );
      })}
    </span>
  );
}

function LastHour({ runs }: { runs: RunOverview[] }) {
  // The nodes of the ranks that wait most come first, those of each run in turn.
  const longest = Math.max(0, ...runs.map((run) => run.readers.length));
  const turns = Array.from({ length: longest }, (_, at) => runs.flatMap((run) => run.readers[at]?.node ?? [])).flat();
  const all = [...new Set(turns)];
  const nodes = all.slice(0, ASKED).sort();
  const paths = nodes.map((node) => `v1/nodes/${part(node)}/series?names=rank_samples_per_second,rank_wait_share&points=90`);
  const answers = useAnswers<NodeSeries>(paths, 20_000);
  if (runs.length === 0) return null;
  const found = answers.flatMap((answer) => answer.data ?? []);
  const { times, runs: lines } = runLines(found);
  const shown = lines.filter((line) => runs.some((run) => run.run === line.run)).slice(0, RUNS);
  // A sum over some of the ranks would be a wrong number: a mean is one of each rank.
  const isPart = all.length > nodes.length || runs.some((run) => run.readers.length < run.ranks);
  const title = isPart ? `Samples per second of a rank, mean at ${plural(nodes.length, 'node')}` : 'Samples per second';
  return (
    <section aria-labelledby="hour-title">
      <h2 id="hour-title">Last hour</h2>
      <div class="charts">
        <Chart title={title} times={times} lines={shown.map(({ run, samples, ofRank }) => ({ label: run, points: isPart ? ofRank : samples }))} format={amount} />
        <Chart
          title="Time that the slowest rank waits for data"
          times={times}
          lines={shown.map(({ run, exposed }) => ({ label: run, points: exposed }))}
          format={percent}
          least={0.1}
        />
      </div>
    </section>
  );
}

function Disks() {
  const rows = useAnswer<NodeRows>('v1/cluster/nodes?order=disk&limit=6', 5000);
  return (
    <section aria-labelledby="disks-title">
      <h2 id="disks-title">Fullest disks</h2>
      {rows.data ? (
        <>
          <Table
            caption="The nodes whose disks have the least part free"
            isCaptionHidden
            rows={rows.data.rows.filter((row) => isNumber(row.cache_limit_bytes))}
            id={(row) => row.id}
            empty="No node reports its disk."
            columns={[
              { title: 'Node', isName: true, cell: (row) => <a href={nodeHref(row.id)}><Name text={row.id} most={24} /></a> },
              { title: 'Disk of the cache', cell: (row) => <Usage used={(row.disk_size_bytes ?? 0) - (row.disk_free_bytes ?? 0)} of={row.disk_size_bytes} text={`${bytes(row.disk_free_bytes)} free of ${bytes(row.disk_size_bytes)}`} isLimit /> },
              { title: 'Cache and its limit', cell: (row) => <Usage used={row.cache_used_bytes} of={row.cache_limit_bytes} text={`${bytes(row.cache_used_bytes)} of ${bytes(row.cache_limit_bytes)}`} /> },
            ]}
          />
          {rows.data.total > rows.data.rows.length && <p><a href={listHref('nodes', { order: 'disk' })}>All {count(rows.data.total)} nodes</a></p>}
        </>
      ) : <Missing of="the list of nodes" loaded={rows} />}
    </section>
  );
}

/** A bar with its text; one whose end is bad has another colour near it. */
export function Usage({ used, of, text, isLimit = false }: { used: number | undefined; of: number | undefined; text: string; isLimit?: boolean }) {
  if (!isNumber(used) || !isNumber(of) || of <= 0) return <>{NONE}</>;
  const tone = isLimit ? fullness(used / of) : 'plain';
  return (
    <span class="usage">
      <Bar share={used / of} tone={tone} />
      <span class="usage-text">
        {tone !== 'plain' && <Mark kind={tone as MarkKind} />}
        {text}
      </span>
    </span>
  );
}

function JournalList() {
  const { since, entries, refused } = useStore(journal);
  const [isLong, setLong] = useState(false);
  const shown = isLong ? entries : entries.slice(0, 10);
  return (
    <section aria-labelledby="journal-title" class="journal">
      <h2 id="journal-title">Journal</h2>
      {refused !== undefined && <p class="muted">The token has no right to follow events: <Prose text={refused} /></p>}
      {entries.length === 0 ? (
        <p class="muted">No change since <Time at={since} seconds />, when this page opened.</p>
      ) : (
        <ol>
          {shown.map((entry, at) => (
            <li key={entries.length - at}>
              <Time at={entry.at} seconds />
              <Mark kind={entry.mark} />
              <span>{entry.text}{entry.times !== undefined && <span class="muted"> ({count(entry.times)} times)</span>}</span>
            </li>
          ))}
        </ol>
      )}
      {entries.length > 10 && <button type="button" class="more" onClick={() => setLong(!isLong)}>{isLong ? 'Show the newest' : `Show all ${entries.length} lines`}</button>}
      {entries.length > 0 && <p class="muted">Since <Time at={since} seconds />, when this page opened.</p>}
    </section>
  );
}

