// One version of a dataset: its samples, columns, labels and shards; and the versions and tags of the dataset.

import { getPage, type Page } from '../api/client';
import { useAnswer, useAnswers, usePage, useWindows } from '../api/poll';
import type { DatasetInfo, LabelCount, LogEntry, ShardRow, TagInfo, VersionSummary } from '../api/types';
import { bytes, count, isNumber, NONE, percent, plural } from '../format';
import { datasetHref, part, shardHref } from '../route';
import { cut, visible } from '../text';
import { Digest, Fact, Mark, Missing, Name, Prose, Stale, Time } from '../ui/parts';
import { type Column, LongTable, Table } from '../ui/table';
import { figure } from '../values';
import { Comparison } from './compare';
import { PlanExplorer } from './explorer';
import { Partitions } from './partitions';
import { Samples } from './samples';

const VIEWS = [['', 'Samples'], ['columns', 'Columns'], ['labels', 'Labels'], ['shards', 'Shards'], ['versions', 'Versions'], ['partitions', 'Partitions'], ['plan', 'Plan explorer']] as const;
/** Labels with a colour of their own. */
const COLOURS = 7;

/** The version that an address names, or the present one; and the summary of it. */
export function useVersion(name: string, query: URLSearchParams) {
  const given = query.get('version') ?? '';
  const info = useAnswer<DatasetInfo>(`v1/datasets/${part(name)}`, 15_000);
  const version = /^[0-9a-f]{64}$/.test(given) ? given : info.data?.version;
  const [summary] = useAnswers<VersionSummary>(version === undefined ? [] : [`v1/versions/${part(version)}/summary`], 15_000);
  return { info, version, summary: summary ?? {} };
}

export function DatasetPage({ name, query }: { name: string; query: URLSearchParams }) {
  const { info, version, summary } = useVersion(name, query);
  const view = VIEWS.find(([key]) => key === query.get('view'))?.[0] ?? '';
  const { data } = summary;
  // Without the parameter the page follows the dataset to its next version.
  const kept = query.get('version') ?? undefined;
  const isLong = view === 'labels' || view === 'shards';
  return (
    <div class={isLong && data ? 'filling' : ''}>
      <p class="up"><a href="#/datasets">Datasets</a></p>
      <h1 tabIndex={-1}>Dataset <Name text={name} most={60} /></h1>
      {!data || version === undefined ? <Missing of={version === undefined ? 'this dataset' : 'this version'} loaded={version === undefined ? info : summary} /> : (
        <>
          <dl class="facts">
            <Fact name="Version"><Digest text={version} /></Fact>
            {info.data && (
              <Fact name="State">
                {info.data.version === version ? <span class="state"><Mark kind="good" /> present</span> : <span class="state"><Mark kind="half" tone="muted" /> <a href={datasetHref(name)}>not the present one</a></span>}
              </Fact>
            )}
            <Fact name="Samples">{count(data.samples)}</Fact>
            <Fact name="Shards">{count(data.shards)}</Fact>
            <Fact name="Size">{bytes(data.bytes)}</Fact>
            <Fact name="Median row">{bytes(data.row_lengths?.p50 ?? (data.samples > 0 ? data.row_bytes / data.samples : undefined))}</Fact>
            {isNumber(data.inputs) && <Fact name="Inputs">{count(data.inputs)}</Fact>}
            <Fact name="Left out"><span class={data.skipped.count > 0 ? 'is-warning strong' : ''}>{count(data.skipped.count)}</span></Fact>
          </dl>
          <nav class="views" aria-label="Views of the dataset">
            {VIEWS.map(([key, title]) => (
              <a key={key} href={datasetHref(name, { version: kept, view: key })} aria-current={key === view ? 'page' : undefined}>{title}</a>
            ))}
          </nav>
          {view === '' && <Samples name={name} version={version} kept={kept} summary={data} query={query} />}
          {view === 'columns' && <Columns summary={data} />}
          {view === 'labels' && <Labels summary={data} />}
          {view === 'shards' && <Shards name={name} version={version} kept={kept} summary={data} />}
          {view === 'partitions' && <Partitions name={name} version={version} kept={kept} summary={data} query={query} />}
          {view === 'plan' && <PlanExplorer name={name} version={version} kept={kept} query={query} />}
          {view === 'versions' && <Versions name={name} dataset={info.data?.name ?? name} version={version} kept={kept} query={query} />}
        </>
      )}
    </div>
  );
}

function Columns({ summary }: { summary: VersionSummary }) {
  const { columns, row_lengths: lengths, skipped } = summary;
  const made = summary.settings === undefined ? summary.config : { layout: summary.config, ingest: summary.settings };
  const settings = JSON.stringify(made, undefined, 2) ?? 'null';
  return (
    <>
      <section>
        <h2>Columns ({count(columns.length)})</h2>
        <Table
          caption="Columns of the version"
          isCaptionHidden
          rows={columns}
          id={(column, at) => `${at} ${column.name}`}
          most={40}
          columns={[
            { title: 'Column', isName: true, cell: (column) => <Name text={column.name} most={40} /> },
            { title: 'Type', cell: (column) => <code><Name text={column.type} most={40} /></code> },
            { title: 'Present', isNumber: true, cell: (column) => (isNumber(column.present) && summary.samples > 0 ? percent(column.present / summary.samples) : column.nullable ? NONE : percent(1)) },
            { title: 'Least', isNumber: true, cell: ({ spread }) => (spread ? figure(spread.min) : NONE) },
            { title: 'Mean', isNumber: true, cell: ({ spread }) => (spread ? figure(spread.mean) : NONE) },
            { title: 'Greatest', isNumber: true, cell: ({ spread }) => (spread ? figure(spread.max) : NONE) },
            { title: 'Deviation', isNumber: true, from: 'medium', cell: ({ spread }) => (spread && spread.variance >= 0 ? figure(Math.sqrt(spread.variance)) : NONE) },
            { title: 'Of', from: 'medium', cell: ({ spread }) => (spread ? (spread.of === 'lengths' ? 'lengths' : 'values') : NONE) },
          ]}
        />
      </section>
      {lengths && (
        <section>
          <h2>Bytes of a row</h2>
          <dl class="facts">
            {([['Least', 'min'], ['25 %', 'p25'], ['Median', 'p50'], ['75 %', 'p75'], ['99 %', 'p99'], ['Greatest', 'max']] as const).map(([title, key]) => <Fact key={key} name={title}>{bytes(lengths[key])}</Fact>)}
          </dl>
        </section>
      )}
      {skipped.count > 0 && (
        <section>
          <h2>Left out by ingest{skipped.first.length < skipped.count && ` (the first ${count(skipped.first.length)} of ${count(skipped.count)})`}</h2>
          <Table
            caption="Files and rows that ingest left out"
            isCaptionHidden
            rows={skipped.first}
            id={(one, at) => `${at} ${one.name}`}
            most={10}
            columns={[
              { title: 'Name', isName: true, cell: (one) => <Name text={one.name} most={60} /> },
              { title: 'Reason', cell: (one) => <Prose text={one.reason} most={200} /> },
            ]}
          />
        </section>
      )}
      <section>
        <h2>Settings of ingest</h2>
        <pre class="lines is-whole" tabIndex={0} role="region" aria-label="Settings of ingest">{cut(settings.split('\n').map(visible).join('\n'), 20_000)}</pre>
      </section>
    </>
  );
}

function Labels({ summary }: { summary: VersionSummary }) {
  const { labels } = summary;
  if (!labels) return <p class="muted empty">The version has no column of labels.</p>;
  const most = Math.max(1, ...labels.most.map((one) => one.samples));
  const hasClass = labels.most.some((one) => one.class !== undefined);
  const columns: Column<LabelCount>[] = [
    { title: hasClass ? 'Class' : 'Label', isName: true, kind: 'label-name', cell: (one) => <Name text={one.class ?? one.label} most={48} /> },
    ...(hasClass ? [{ title: 'Label', isNumber: true, from: 'medium' as const, cell: (one: LabelCount) => <Name text={one.label} most={20} /> }] : []),
    { title: 'Share', isNumber: true, cell: (one) => smallPercent(one.samples / Math.max(1, summary.samples)) },
    { title: 'Samples', kind: 'label-bar', cell: (one) => (
      <span class="heat from-left"><span class="heat-bar" aria-hidden="true"><span style={{ width: `${(100 * one.samples) / most}%` }} /></span><span>{count(one.samples)}</span></span>
    ) },
  ];
  return (
    <>
      <p class="muted note">
        {plural(labels.distinct, 'label')} in column <Name text={summary.label_column} most={40} />
        {labels.most.length < labels.distinct && <>; the {count(labels.most.length)} with the most samples</>}.
      </p>
      <LongTable caption="Labels, the most samples first" columns={columns} total={labels.most.length} row={(at) => labels.most[at]} id={(one) => one.label} list={summary.version} isLow />
    </>
  );
}

/** A share that is not zero does not look like it. */
const smallPercent = (share: number): string => (share > 0 && share < 0.0005 ? '< 0.1\u00a0%' : percent(share));

function Shards({ name, version, kept, summary }: { name: string; version: string; kept: string | undefined; summary: VersionSummary }) {
  const list = `v1/versions/${part(version)}/shards?`;
  const { total, first, row, onView } = useWindows<ShardRow>(list, 15_000);
  const common = (summary.labels?.most ?? []).slice(0, COLOURS);
  const colours = new Map(common.map((one, at) => [one.label, at]));
  const classes = new Map((summary.labels?.most ?? []).map((one) => [one.label, one.class ?? one.label]));
  const columns: Column<ShardRow>[] = [
    { title: 'Shard', isName: true, cell: (shard) => <span class="nowrap"><span class="muted shard-number">{count(shard.index)}</span> <a href={shardHref(shard.id)}><Digest text={shard.id} /></a></span> },
    { title: 'First sample', isNumber: true, cell: (shard) => <a href={datasetHref(name, { version: kept, from: String(shard.first) })}>{count(shard.first)}</a> },
    { title: 'Samples', isNumber: true, from: 'medium', cell: (shard) => count(shard.samples) },
    { title: 'Size', isNumber: true, cell: (shard) => bytes(shard.bytes) },
    ...(summary.labels ? [{ title: 'Labels', kind: 'shard-labels', cell: (shard: ShardRow) => <LabelStack shard={shard} colours={colours} classes={classes} /> }] : []),
  ];
  return (
    <>
      <p class="muted note legend-row">
        {plural(summary.shards, 'shard')}
        {common.map((one, at) => <span key={one.label} class="nowrap"><i class={`swatch line-${at}`} aria-hidden="true" /><Name text={one.class ?? one.label} most={20} /></span>)}
        {(summary.labels?.distinct ?? 0) > COLOURS && <span class="nowrap"><i class="swatch line-7" aria-hidden="true" />others</span>}
      </p>
      {total === undefined && !first.data ? <Missing of="the shards" loaded={first} /> : (
        <LongTable caption="Shards, in their order" columns={columns} total={total ?? 0} row={row} id={(shard) => `${shard.index}`} list={list} onView={onView} isLow />
      )}
    </>
  );
}

/** The labels of a shard as a bar, and in words. */
function LabelStack({ shard, colours, classes }: { shard: ShardRow; colours: Map<string, number>; classes: Map<string, string> }) {
  const labels = shard.labels ?? [];
  const share = (samples: number): number => Math.min(1, samples / Math.max(1, shard.samples));
  const words = labels.map((one) => `${cut(visible(one.class ?? classes.get(one.label) ?? one.label), 24)} ${percent(share(one.samples))}`);
  const rest = shard.samples - labels.reduce((sum, one) => sum + one.samples, 0);
  return (
    <span class="label-stack" title={[...words.slice(0, 12), ...(words.length > 12 || rest > 0 ? ['others'] : [])].join('\n')}>
      <span class="bar stack" aria-hidden="true">
        {labels.map((one) => <span key={one.label} class={`line-${colours.get(one.label) ?? 7}`} style={{ width: `${share(one.samples) * 100}%` }} />)}
      </span>
      <span class="label-words">{words.length === 0 ? NONE : words.slice(0, 3).join(', ')}{words.length > 3 && ', …'}</span>
    </span>
  );
}

/** `name` may be a reference; the log and the tags are of its dataset. */
function Versions({ name, dataset, version, kept, query }: { name: string; dataset: string; version: string; kept: string | undefined; query: URLSearchParams }) {
  const token = query.get('log') ?? '';
  const { page: log, next } = usePage<LogEntry>(`v1/datasets/${part(dataset)}/log?limit=50`, token, 30_000);
  const [tags = {}] = useAnswers<Page<TagInfo>>([`v1/datasets/${part(dataset)}/tags?limit=200`], 30_000, getPage<TagInfo>);
  const earlier = query.get('with') ?? '';
  const link = (of: string) => (of === version ? <><Digest text={of} /> <span class="muted">shown here</span></> : <a href={datasetHref(name, { version: of })}><Digest text={of} /></a>);
  const compare = (commit: LogEntry) => (commit.version === version ? NONE : commit.version === earlier ? <span class="muted">above</span> : (
    <a href={datasetHref(name, { version: kept, view: 'versions', log: token, with: commit.version })}>Compare<span class="visually-hidden"> with commit {count(commit.number)}</span></a>
  ));
  return (
    <>
      {/^[0-9a-f]{64}$/.test(earlier) && <Comparison name={name} version={version} earlier={earlier} kept={kept} />}
      <section>
        <h2>Tags</h2>
        {!tags.data ? <Missing of="the tags" loaded={tags} /> : (
          <Table
            caption="Tags of the dataset"
            isCaptionHidden
            rows={tags.data.items}
            id={(tag) => tag.tag}
            empty="The dataset has no tag."
            most={10}
            columns={[
              { title: 'Tag', isName: true, cell: (tag) => <Name text={tag.tag} most={40} /> },
              { title: 'Version', cell: (tag) => link(tag.version) },
              { title: 'Set', cell: (tag) => <Time at={tag.tagged_at} /> },
            ]}
          />
        )}
        {tags.data?.next !== undefined && <p class="muted">The first {count(tags.data.items.length)} tags.</p>}
      </section>
      <section>
        <h2>Commits</h2>
        {!log.data ? <Missing of="the commits" loaded={log} /> : (
          <>
            <Stale loaded={log} />
            <Table
              caption="Commits of the dataset, the newest first"
              isCaptionHidden
              rows={log.data.items}
              id={(commit) => commit.id}
              columns={[
                { title: 'Commit', isName: true, isNumber: true, cell: (commit) => count(commit.number) },
                { title: 'Version', cell: (commit) => link(commit.version) },
                { title: 'Changes', cell: compare },
                { title: 'Time', cell: (commit) => <Time at={commit.time} /> },
                { title: 'By', from: 'medium', cell: (commit) => <Name text={commit.operation} most={20} /> },
                { title: 'Samples', isNumber: true, cell: (commit) => count(commit.samples) },
                { title: 'Size', isNumber: true, from: 'medium', cell: (commit) => bytes(commit.bytes) },
                { title: 'Shards', isNumber: true, from: 'wide', cell: (commit) => count(commit.shards) },
                { title: 'Reason', from: 'medium', cell: (commit) => (commit.message ? <Prose text={commit.message} most={200} /> : NONE) },
              ]}
            />
            <p class="pages">
              {token !== '' && <a href={datasetHref(name, { version: kept, view: 'versions' })}>Newest commits</a>}
              {next !== undefined && <a href={datasetHref(name, { version: kept, view: 'versions', log: next })}>Older commits</a>}
            </p>
          </>
        )}
      </section>
    </>
  );
}
