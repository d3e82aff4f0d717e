// What changed from an earlier version of a dataset to the shown one, by content.

import { useAnswer } from '../api/poll';
import type { ColumnDrift, DriftRows, LabelDrift, VersionDiff } from '../api/types';
import { changeOf, counted, points, withoutSamples } from '../compare';
import { bytes, count, isNumber, NONE, percent } from '../format';
import { datasetHref, part } from '../route';
import { cut, visible } from '../text';
import { Digest, Fact, Missing, Name, Prose } from '../ui/parts';
import { Table } from '../ui/table';
import { figure } from '../values';

const LENGTHS = [['Least', 'min'], ['25 %', 'p25'], ['Median', 'p50'], ['75 %', 'p75'], ['99 %', 'p99'], ['Greatest', 'max']] as const;

export function Comparison({ name, version, earlier, kept }: { name: string; version: string; earlier: string; kept: string | undefined }) {
  const answer = useAnswer<VersionDiff>(`v1/versions/${part(version)}/diff?from=${part(earlier)}&stats=true`, 15_000);
  const { data } = answer;
  return (
    <section class="compared">
      <div class="title-row">
        <h2>Changes since <Digest text={earlier} /></h2>
        <a href={datasetHref(name, { version: kept, view: 'versions' })}>End the comparison</a>
      </div>
      {!data ? <Missing of="the changes" loaded={answer} /> : <Changes found={data} />}
    </section>
  );
}

function Changes({ found }: { found: VersionDiff }) {
  const { diff, stats } = found;
  const differs = [diff.samples?.added, diff.samples?.removed].some((one) => (one ?? 0) > 0);
  return (
    <>
      <dl class="facts">
        <Fact name="Samples">{diff.samples ? counted(diff.samples) : `${count(found.old.samples)} before, ${count(found.new.samples)} after`}</Fact>
        <Fact name="Shards">{counted(diff.shards)}</Fact>
        {diff.inputs && <Fact name="Inputs">{counted(diff.inputs)}</Fact>}
        <Fact name="Size">{bytes(found.old.bytes)} before, {bytes(found.new.bytes)} after</Fact>
        {diff.samples && !differs && <Fact name="Order">{diff.same_order === undefined ? 'not compared' : diff.same_order ? 'each sample has the same number' : 'the same samples have other numbers'}</Fact>}
        {stats && isNumber(stats.label_distance) && <Fact name="Distance of labels">{percent(stats.label_distance)}</Fact>}
      </dl>
      {!diff.samples && <p class="muted note">{withoutSamples(diff.left_out)} <code>shardctl diff</code> compares them.</p>}
      {diff.schema.length === 0 ? <p class="muted note">The columns are the same.</p> : (
        <Table
          caption={`Changes of columns${found.more_schema ? ` (the first ${count(diff.schema.length)} of ${count(diff.schema.length + found.more_schema)})` : ''}`}
          rows={diff.schema.map(changeOf)}
          id={([column, what], at) => `${at} ${column} ${what}`}
          most={10}
          columns={[
            { title: 'Column', isName: true, cell: ([column]) => <Name text={column} most={40} /> },
            { title: 'Change', cell: ([, what]) => <Name text={what} most={40} /> },
            { title: 'Details', cell: ([, , how]) => <Prose text={how} most={300} /> },
          ]}
        />
      )}
      {stats && <Drift stats={stats} />}
    </>
  );
}

/** How far the samples are apart: their labels, their numbers, the lengths of their rows. */
function Drift({ stats }: { stats: DriftRows }) {
  const { labels, columns, row_bytes: lengths } = stats;
  const total = (of: (label: LabelDrift) => number): number => Math.max(1, (labels ?? []).reduce((sum, label) => sum + of(label), 0));
  const [olds, news] = [total((label) => label.old), total((label) => label.new)];
  const isWhole = !stats.more_labels;
  const numbers = (of: (column: ColumnDrift) => number | null) => (column: ColumnDrift) => { const value = of(column); return isNumber(value) ? figure(value) : NONE; };
  return (
    <>
      {labels && labels.length > 0 && (
        <Table
          caption={isWhole ? 'Labels, those that changed most first' : `The ${count(labels.length)} labels that changed most, of ${count(labels.length + (stats.more_labels ?? 0))}`}
          rows={labels}
          id={(label) => label.label}
          most={10}
          columns={[
            { title: 'Label', isName: true, cell: (label) => <Name text={label.class ?? label.label} most={40} /> },
            { title: 'Before', isNumber: true, cell: (label) => count(label.old) },
            ...(isWhole ? [{ title: 'Share', isNumber: true, from: 'medium' as const, cell: (label: LabelDrift) => percent(label.old / olds) }] : []),
            { title: 'After', isNumber: true, cell: (label) => count(label.new) },
            ...(isWhole ? [
              { title: 'Share now', isNumber: true, from: 'medium' as const, cell: (label: LabelDrift) => percent(label.new / news) },
              { title: 'Change', isNumber: true, cell: (label: LabelDrift) => points(label.new / news - label.old / olds) },
            ] : []),
          ]}
        />
      )}
      {columns && columns.length > 0 && (
        <Table
          caption={`Columns of numbers, those that changed most first${stats.more_columns ? `: ${count(columns.length)} of ${count(columns.length + stats.more_columns)}` : ''}`}
          rows={columns}
          id={(column) => column.column}
          most={10}
          columns={[
            { title: 'Column', isName: true, cell: (column) => <><Name text={column.column} most={40} />{column.measured === 'lengths' && <span class="muted"> (length)</span>}</> },
            { title: 'Mean', isNumber: true, cell: numbers((column) => column.old.mean) },
            { title: 'Mean now', isNumber: true, cell: numbers((column) => column.new.mean) },
            { title: 'Deviations apart', isNumber: true, cell: (column) => (isNumber(column.difference) ? column.difference.toFixed(2) : NONE) },
            { title: 'Range', isNumber: true, from: 'medium', cell: ({ old }) => range(old) },
            { title: 'Range now', isNumber: true, from: 'medium', cell: (column) => range(column.new) },
          ]}
        />
      )}
      {lengths && (
        <Table
          caption="Bytes of a row"
          rows={lengths.map((of, at) => ({ of, side: at === 0 ? 'before' : 'after' }))}
          id={({ side }) => side}
          columns={[
            { title: 'Version', isName: true, cell: ({ side }) => side },
            ...LENGTHS.map(([title, key]) => ({ title, isNumber: true, cell: ({ of }: { of: Record<string, number> }) => bytes(of[key]) })),
          ]}
        />
      )}
      {(!columns || !lengths) && <p class="muted note">Lengths and columns were not measured when one of the versions was made.</p>}
    </>
  );
}

const range = ({ min, max }: { min: number | null; max: number | null }): string => (isNumber(min) && isNumber(max) ? cut(visible(`${figure(min)} to ${figure(max)}`), 40) : NONE);
