// All runs that the cluster knows, by name.

import { type Loaded, usePage } from '../api/poll';
import type { Overview, RunInfo, RunState } from '../api/types';
import { count, NONE, percent } from '../format';
import { datasetHref, listHref, runHref } from '../route';
import { Digest, Mark, type MarkKind, Missing, Name, Stale, Time } from '../ui/parts';
import { Table } from '../ui/table';
import { epochShare } from '../verdict';
import { EpochBar } from './overview';

const ROWS = 100;

const STATES: Record<RunState, [MarkKind, string]> = {
  created: ['idle', 'muted'],
  running: ['good', 'good'],
  interrupted: ['warning', 'warning'],
  finished: ['good', 'muted'],
  stopped: ['idle', 'muted'],
  failed: ['critical', 'critical'],
  removing: ['half', 'muted'],
};

export function RunStateMark({ state }: { state: RunState }) {
  const [kind, tone] = STATES[state] ?? ['idle', 'muted'];
  return <span class="state"><Mark kind={kind} tone={tone} /> {String(state)}</span>;
}

export function RunsPage({ query, overview }: { query: URLSearchParams; overview: Loaded<Overview> }) {
  const token = query.get('page') ?? '';
  const { page: runs, next } = usePage<RunInfo>(`v1/runs?limit=${ROWS}`, token, 5000);
  const read = new Map((overview.data?.runs ?? []).map((run) => [run.run, run]));
  return (
    <>
      <h1 tabIndex={-1}>Runs</h1>
      {!runs.data ? <Missing of="the list of runs" loaded={runs} /> : (
        <>
          <Stale loaded={runs} />
          <Table
            caption="All runs, by name"
            isCaptionHidden
            rows={runs.data.items}
            id={(run) => run.id}
            empty="The cluster has no run. A run begins when its first loader attaches."
            columns={[
              { title: 'Run', isName: true, cell: (run) => <a href={runHref(run.id)}><Name text={run.id} most={40} /></a> },
              { title: 'State', cell: (run) => <RunStateMark state={run.state} /> },
              {
                title: 'Epoch', kind: 'epoch',
                cell: (run) => {
                  const now = read.get(run.id);
                  return now ? <span class="usage"><EpochBar run={now} /><span class="usage-text">{count(now.epoch)}, {percent(epochShare(now))}</span></span> : NONE;
                },
              },
              { title: 'Waits for data', isNumber: true, from: 'medium', cell: (run) => percent(read.get(run.id)?.waits?.exposed_share) },
              { title: 'Dataset', from: 'medium', cell: (run) => (run.dataset === undefined ? NONE : <a href={datasetHref(run.dataset, { version: run.version })}><Name text={run.dataset} most={28} /></a>) },
              { title: 'Version', from: 'wide', cell: (run) => (run.version === undefined ? NONE : <Digest text={run.version} />) },
              { title: 'Ranks', isNumber: true, from: 'medium', cell: (run) => count(run.world) },
              { title: 'Virtual ranks', isNumber: true, from: 'wide', cell: (run) => count(run.virtual_ranks) },
              { title: 'Began', from: 'medium', cell: (run) => <Time at={run.began} /> },
              { title: 'Last report', from: 'wide', cell: (run) => <Time at={run.seen} /> },
            ]}
          />
          <p class="pages">
            {token !== '' && <a href="#/runs">First page</a>}
            {next !== undefined && <a href={listHref('runs', { page: next })}>Next page</a>}
          </p>
        </>
      )}
    </>
  );
}
