// What a plan would cost and how it would mix, before it is made: the node plays it, as `shardctl simulate` does.

import { useEffect, useMemo, useState } from 'preact/hooks';
import { useAnswers, useKept } from '../api/poll';
import type { EpochReport, Simulation } from '../api/types';
import { bytes, count, duration, isNumber, NONE, percent, plural } from '../format';
import { distance } from '../mixing';
import { datasetHref, part, whole } from '../route';
import { cut, visible } from '../text';
import { Chart } from '../ui/chart';
import { Fact, Missing } from '../ui/parts';
import { Picture } from '../ui/picture';
import { Table } from '../ui/table';

/** The fields of the form: the parameter, its title, what it is without an entry, and which entries it takes. */
const FIELDS = [
  ['q', 'Q, or a schedule', '0.1', /^[\d.,]{1,40}$/, 'a share such as 0.1, or a schedule such as 1,0.1'],
  ['partitions', 'Partitions', 'default', /^[1-9]\d{0,4}$/, 'a number from 1 to 65536'],
  ['grain_rows', 'Rows of a grain', 'default', /^[1-9]\d{0,6}$/, 'a power of two'],
  ['nodes', 'Nodes', '4', /^[1-9]\d{0,3}$/, 'a number from 1 to 4096'],
  ['epochs', 'Epochs', '10', /^(?:[1-9]\d?|1\d\d|200)$/, 'a number from 1 to 200'],
  ['link', 'Bandwidth of a node', '10Gbit/s', /^[\d.]{1,12} ?[A-Za-z]{1,4}(?:\/s)?$/, 'a rate such as 10Gbit/s or 1.25GB/s'],
  ['step_ms', 'Milliseconds of a step', 'unknown', /^[1-9]\d{0,6}$/, 'a number from 1'],
] as const;
const CHOICES = [
  ['selection', 'Grains exchanged', [['', 'cyclic'], ['independent', 'independent']]],
  ['placement', 'Placement at first', [['', 'by shards'], ['random', 'at random']]],
] as const;
type Key = (typeof FIELDS)[number][0] | (typeof CHOICES)[number][0];

interface Props {
  name: string;
  version: string;
  /** The version of the address, if it has one. */
  kept: string | undefined;
  query: URLSearchParams;
}

export function PlanExplorer({ name, version, kept, query }: Props) {
  const settings = Object.fromEntries([...FIELDS.map(([key]) => key), ...CHOICES.map(([key]) => key)].map((key) => [key, query.get(key) ?? ''])) as Record<Key, string>;
  const epochs = whole(settings.epochs, 10, 200);
  const matrix = Math.min(epochs - 1, whole(query.get('matrix'), 1));
  const to = (change: Record<string, string>): string => datasetHref(name, { version: kept, view: 'plan', ...settings, matrix: String(matrix), ...change });
  const asked = new URLSearchParams([...Object.entries(settings).filter(([, value]) => value !== ''), ['matrix', String(matrix)]]);
  const [answer = {}] = useAnswers<Simulation>([`v1/versions/${part(version)}/simulation?${asked}`], 60_000);
  const { data } = answer;
  // The results of before stay, while those of other settings are on their way.
  const last = useKept(data && { simulation: data, settings }, '');
  const shown = answer.error && !data ? undefined : last;
  return (
    <section>
      <h2 class="visually-hidden">Plan explorer</h2>
      <p class="muted note">What a plan of this version would move, and how it would mix, before you make it. Nothing is stored.</p>
      <PlanForm settings={settings} to={to} />
      <p class="muted" role="status">{!data && !answer.error && 'Simulating …'}</p>
      {!shown ? <Missing of="the simulation" loaded={answer} /> : (
        <div aria-busy={!data}>
          <Results dataset={kept === undefined ? name : `${name}@${kept}`} settings={shown.settings} simulation={shown.simulation} />
          <Mixing simulation={shown.simulation} epoch={matrix} to={(epoch) => to({ matrix: String(epoch) })} />
        </div>
      )}
    </section>
  );
}

function PlanForm({ settings, to }: { settings: Record<Key, string>; to: (change: Record<string, string>) => string }) {
  const [draft, setDraft] = useState(settings);
  useEffect(() => setDraft(settings), [JSON.stringify(settings)]);
  const [fault, setFault] = useState('');
  const submit = (event: Event): void => {
    event.preventDefault();
    const wrong = FIELDS.find(([key, , , form]) => draft[key] !== '' && !form.test(draft[key]));
    setFault(wrong ? `${wrong[1]}: enter ${wrong[4]}.` : '');
    if (!wrong) location.replace(to(draft));
  };
  const change = (key: Key, value: string): void => setDraft({ ...draft, [key]: value });
  return (
    <form class="tools step-form" onSubmit={submit} noValidate aria-label="A plan and a cluster">
      {FIELDS.map(([key, title, usual]) => (
        <label key={key} class="field">
          <span>{title}</span>
          <input type="text" class="size" value={draft[key]} placeholder={usual} onInput={(event) => change(key, event.currentTarget.value.trim())} autocomplete="off" spellcheck={false} />
        </label>
      ))}
      {CHOICES.map(([key, title, values]) => (
        <label key={key} class="field">
          <span>{title}</span>
          <select value={draft[key]} onChange={(event) => change(key, event.currentTarget.value)}>
            {values.map(([value, text]) => <option key={value} value={value}>{text}</option>)}
          </select>
        </label>
      ))}
      <button type="submit" class="primary">Simulate</button>
      <p role="alert" class="refusal">{fault}</p>
    </form>
  );
}

function Results({ dataset, settings, simulation }: { dataset: string; settings: Record<Key, string>; simulation: Simulation }) {
  const { report, labels } = simulation;
  const { summary, epochs } = report;
  const nodes = epochs[0]?.nodes ?? 1;
  // A full shuffle moves each sample to any node.
  const full = report.row_bytes * (1 - 1 / nodes);
  const each = summary.exchanged_bytes / Math.max(1, summary.epochs);
  const times = epochs.map(({ epoch }) => epoch);
  const of = (value: (epoch: EpochReport) => number | undefined | null) => epochs.map((epoch) => value(epoch) ?? null);
  const command = ['shardctl partition', cut(visible(dataset), 120), ...[['--q', settings.q || '0.1'], ['--partitions', settings.partitions], ['--grain-rows', settings.grain_rows], ['--selection', settings.selection], ['--placement', settings.placement]].flatMap(([flag, value]) => (value ? [flag, value] : []))].join(' ');
  return (
    <>
      <dl class="facts">
        <Fact name="Sent after an epoch">{bytes(each)}{full > 0 && <span class="muted"> ({percent(each / full)} of a full shuffle)</span>}</Fact>
        <Fact name="Samples that move">{percent(summary.moved_share)}</Fact>
        <Fact name="Of one node at most">{bytes(summary.largest_node_bytes)}</Fact>
        <Fact name="Time of an exchange">{duration(summary.slowest_exchange_seconds)}</Fact>
        <Fact name="Hidden by steps of">{summary.hiding_step_seconds < 1e-4 ? 'any length' : `${duration(summary.hiding_step_seconds)} or more`}</Fact>
        {summary.hidden_share !== undefined && <Fact name="Hidden">{percent(summary.hidden_share)}{(summary.exposed_seconds ?? 0) > 0 && <span class="is-warning">, waits {duration(summary.exposed_seconds)}</span>}</Fact>}
        <Fact name="Disk of a node at most">{bytes(summary.peak_node_bytes)}</Fact>
        <Fact name="Connections of a node">{count(summary.most_peers)}</Fact>
        <Fact name="Read at other nodes">{bytes(summary.remote_read_bytes / Math.max(1, summary.epochs))}</Fact>
        <Fact name="Partitions">{count(report.partitions)}</Fact>
        <Fact name="Grains">{count(report.grains)} of {plural(report.grain_rows, 'row')}</Fact>
        <Fact name="Steps of an epoch">{count(report.steps_per_epoch)} of {plural(report.global_batch_size, 'sample')}</Fact>
        {labels && <Fact name="Labels at first">{count(labels.begins_with)} of {count(labels.kinds)}<span class="muted"> of a virtual rank</span></Fact>}
      </dl>
      <p class="muted note">
        Make it: <code>{command}</code>
        {summary.counted_epochs < summary.epochs && ` The exchanges of ${count(summary.counted_epochs)} of ${plural(summary.epochs, 'epoch')} were counted, move by move; the others are estimated.`}
      </p>
      <div class="charts">
        <Chart
          title="Distance from a full shuffle"
          axis="epoch"
          times={times}
          format={percent}
          least={0.1}
          lines={[
            { label: 'counted', points: of(({ home_share }) => home_share && distance(home_share.counted, report.partitions)), colour: 0 },
            { label: 'predicted', points: of(({ home_share }) => home_share && distance(home_share.predicted, report.partitions)), colour: 1, dashed: true },
          ]}
        />
        {labels && (
          <Chart
            title="Distance of a virtual rank’s labels from all"
            axis="epoch"
            times={times}
            format={percent}
            least={0.1}
            lines={[
              { label: 'of this plan', points: labels.skew, colour: 0 },
              { label: 'drawn at random', points: labels.skew.map(() => labels.floor), colour: 1, dashed: true },
            ]}
          />
        )}
        <Chart title="Bytes between nodes after an epoch" axis="epoch" times={times} format={bytes} isBinary lines={[{ label: 'sent', points: of((epoch) => epoch.exchanged_bytes), colour: 0 }, { label: 'predicted', points: of((epoch) => epoch.predicted_exchanged_bytes), colour: 1, dashed: true }]} />
      </div>
      {report.nodes.length > 0 && (
        <Table
          caption="Nodes, in a mean epoch"
          rows={report.nodes.slice(0, 1000)}
          id={(node) => String(node.node)}
          most={8}
          columns={[
            { title: 'Node', isName: true, cell: (node) => count(node.node) },
            { title: 'Partitions', isNumber: true, cell: (node) => count(node.partitions) },
            { title: 'Holds', isNumber: true, cell: (node) => bytes(node.held_bytes) },
            { title: 'Sends', isNumber: true, cell: (node) => bytes(node.sent_bytes) },
            { title: 'Receives', isNumber: true, cell: (node) => bytes(node.received_bytes) },
            { title: 'Peers', isNumber: true, from: 'medium', cell: (node) => count(node.most_peers) },
            { title: 'Disk at most', isNumber: true, from: 'medium', cell: (node) => bytes(node.peak_bytes) },
          ]}
        />
      )}
    </>
  );
}

/** Where the grains of each partition began, as a picture. */
function Mixing({ simulation, epoch, to }: { simulation: Simulation; epoch: number; to: (epoch: number) => string }) {
  const { matrix, report } = simulation;
  const even = useMemo(() => (matrix?.rows ?? []).map((row) => 1 / Math.max(1, row.length)), [matrix]);
  if (!matrix) return null;
  const last = report.epochs.length - 1;
  const home = report.epochs[matrix.epoch]?.home_share?.counted;
  const groups = matrix.rows.length;
  return (
    <section class="mixing">
      <h2>Mixing as epoch {count(matrix.epoch)} begins</h2>
      <label class="field inline">
        <span>Epoch</span>
        <input type="range" min={0} max={last} step={1} value={epoch} aria-valuetext={`epoch ${epoch}`} onChange={(event) => location.replace(to(Number(event.currentTarget.value)))} />
      </label>
      <Picture rows={matrix.rows} usual={even} label={`Of each partition, the shares of its grains by the partition that they began in${isNumber(home) ? `: ${percent(home)} are where they began` : ''}`} />
      <p class="muted note">
        A row is {groups < matrix.partitions ? 'a group of neighbouring partitions' : 'a partition'}, and a column {groups < matrix.partitions ? 'the group' : 'the partition'} in which its grains began. {isNumber(home) ? percent(home) : NONE} of {plural(matrix.of_grains, 'grain')} are where they began; fully mixed, {percent(1 / matrix.partitions)} would be.
      </p>
    </section>
  );
}
