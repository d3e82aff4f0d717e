// How often each label is in each partition of a plan in an epoch, beside its share of the version.

import { useMemo, useState } from 'preact/hooks';
import { useAnswer, useKept } from '../api/poll';
import type { LabelOfVersion, PartitionLabels, PlanInfo, PlanLabels, VersionSummary } from '../api/types';
import { count, percent, plural } from '../format';
import { sharesOf, shownOf } from '../mixing';
import { datasetHref, part, whole } from '../route';
import { Fact, Missing, Name } from '../ui/parts';
import { Picture } from '../ui/picture';
import { Table } from '../ui/table';
import { planTitle, usePlans } from './samples';

/** Partitions in one picture. */
const SHOWN = 64;
const MOST_EPOCH = 2 ** 20;
/** The height of a label in the picture, in pixels. */
const ROW = 14;

interface Props {
  name: string;
  version: string;
  /** The version of the address, if it has one. */
  kept: string | undefined;
  summary: VersionSummary;
  query: URLSearchParams;
}

export function Partitions({ name, version, kept, summary, query }: Props) {
  const { answer, plans } = usePlans(version);
  const plan = plans.find((one) => one.id === query.get('plan')) ?? plans[0];
  if (!summary.labels) return <p class="muted empty">The version has no column of labels.</p>;
  if (!answer.data) return <Missing of="the plans" loaded={answer} />;
  if (!plan) return <p class="muted empty">No plan divides this version. Make one: <code>shardctl partition</code>.</p>;
  const epoch = whole(query.get('epoch'), 0, MOST_EPOCH);
  const first = whole(query.get('first'), 0, 2 ** 32 - 1);
  const to = (change: { plan?: string; epoch?: number; first?: number }): string => {
    const at = { plan: plan.id, epoch, first, ...change };
    return datasetHref(name, { version: kept, view: 'partitions', plan: at.plan, epoch: String(at.epoch), first: at.first > 0 ? String(at.first) : '' });
  };
  return (
    <section class="mixing of-labels">
      <h2>Labels by partition</h2>
      <Choice key={`${plan.id} ${epoch}`} plans={plans} plan={plan} epoch={epoch} to={to} />
      <Shown plan={plan.id} epoch={epoch} first={first} to={to} />
    </section>
  );
}

function Choice({ plans, plan, epoch, to }: { plans: PlanInfo[]; plan: PlanInfo; epoch: number; to: (change: { plan?: string; epoch?: number; first?: number }) => string }) {
  const [draft, setDraft] = useState(String(epoch));
  const [fault, setFault] = useState('');
  const submit = (event: Event): void => {
    event.preventDefault();
    const wanted = whole(draft, -1, MOST_EPOCH);
    setFault(wanted < 0 ? `Enter the epoch as a whole number from 0 to ${count(MOST_EPOCH)}.` : '');
    if (wanted >= 0) location.hash = to({ epoch: wanted });
  };
  return (
    <form class="tools step-form" onSubmit={submit} noValidate aria-label="A plan and an epoch">
      <label class="field">
        <span>Plan</span>
        <select value={plan.id} onChange={(event) => (location.hash = to({ plan: event.currentTarget.value, first: 0 }))}>
          {plans.map((one) => <option key={one.id} value={one.id}>{planTitle(one)}</option>)}
        </select>
      </label>
      <label class="field">
        <span>Epoch</span>
        <input type="text" inputMode="numeric" class="size" value={draft} onInput={(event) => setDraft(event.currentTarget.value.trim())} autocomplete="off" />
      </label>
      <button type="submit" class="primary">Show</button>
      <p role="alert" class="refusal">{fault}</p>
    </form>
  );
}

function Shown({ plan, epoch, first, to }: { plan: string; epoch: number; first: number; to: (change: { first?: number }) => string }) {
  const answer = useAnswer<PlanLabels>(`v1/plans/${part(plan)}/labels?epoch=${epoch}&first=${first}&partitions=${SHOWN}`, 15_000);
  // The map of before stays until the next one is there.
  const data = useKept(answer.data, plan);
  if (!data || (answer.error && !answer.data)) return <Missing of="the labels of this plan" loaded={answer} />;
  const [begin, last] = shownOf(data.rows, first);
  return (
    <div aria-busy={!answer.data}>
      <div class="tools steps">
        <p role="status">{data.rows.length < data.partitions ? `Partitions ${count(begin)} to ${count(last)} of ${count(data.partitions)}` : plural(data.partitions, 'partition')} in epoch {count(data.epoch)}</p>
        {data.rows.length < data.partitions && (
          <nav class="before-after" aria-label="Other partitions">
            {begin > 0 && <a href={to({ first: Math.max(0, begin - SHOWN) })}>‹ Previous partitions</a>}
            {last + 1 < data.partitions && <a href={to({ first: last + 1 })}>Next partitions ›</a>}
          </nav>
        )}
      </div>
      <LabelMap found={data} />
    </div>
  );
}

const nameOf = (label: LabelOfVersion): string => label.class ?? label.label;

/** The label of a partition that is furthest above its share of the version. */
function leading(found: PlanLabels, row: PartitionLabels): { label: LabelOfVersion; share: number } | undefined {
  const shares = sharesOf(row);
  const above = found.labels.map((label, at) => ({ label, share: shares[at] ?? 0 })).sort((one, other) => other.share - other.label.share - (one.share - one.label.share));
  return above[0] && above[0].share > above[0].label.share ? above[0] : undefined;
}

function LabelMap({ found }: { found: PlanLabels }) {
  const { labels, others, rows } = found;
  // Labels are the rows of the picture, and partitions its columns.
  const { pixels, usual, lines } = useMemo(() => {
    const shares = rows.map(sharesOf);
    const all = [...labels.map((label, at) => ({ name: nameOf(label), share: label.share, of: at })), ...(others ? [{ name: plural(others.labels, 'other label'), share: others.share, of: labels.length }] : [])];
    const table = all.map(({ name, share, of }) => {
      const parts = shares.map((one) => one[of] ?? 0);
      return { name, share, least: Math.min(...parts), greatest: Math.max(...parts), parts };
    });
    return { pixels: table.map(({ parts }) => parts), usual: table.map(({ share }) => share), lines: table };
  }, [found]);
  const least = Math.min(...rows.map((row) => row.distance));
  const greatest = Math.max(...rows.map((row) => row.distance));
  return (
    <>
      <dl class="facts">
        <Fact name="Mean distance from the version">{percent(found.mean_distance)}</Fact>
        <Fact name="Least and greatest">{percent(least)} and {percent(greatest)}</Fact>
        <Fact name="Drawn at random">{percent(found.floor)}</Fact>
        <Fact name="Numbers">{found.is_exact ? 'counts' : rows.some((row) => row.is_exact) ? 'counts and estimates' : 'estimates'}</Fact>
      </dl>
      <Picture rows={pixels} usual={usual} height={ROW * pixels.length} label={`Of each partition, the shares of its labels: ${percent(found.mean_distance)} from those of the version in the mean. The tables below have the numbers.`} />
      <p class="muted note">
        A column is a partition, and a row a label, the most frequent one at the top. A label with its share of the version has the middle colour; it is lighter where it is rare, and darker where it is frequent.
        {found.is_exact ? ' All numbers are counts: the shards of each partition lie in it whole, or have one label.' : ' Where a partition has parts of shards with several labels, its numbers are estimates: the labels of a grain are taken to be those of its shard, in the mean. That leaves out chance, so an estimate may be below the distance of grains drawn at random.'}
        {!found.is_exact && found.is_in_input_order && ' The rows are in the order of the input: labels may be less even than that.'}
      </p>
      <Table
        caption="Shares of labels: of the version, and the least and the greatest of these partitions"
        rows={lines}
        id={(line, at) => `${at} ${line.name}`}
        most={17}
        columns={[
          { title: 'Label', isName: true, cell: (line) => <Name text={line.name} most={40} /> },
          { title: 'Version', isNumber: true, cell: (line) => percent(line.share) },
          { title: 'Least', isNumber: true, cell: (line) => percent(line.least) },
          { title: 'Greatest', isNumber: true, cell: (line) => percent(line.greatest) },
        ]}
      />
      <Table
        caption="Partitions"
        rows={rows}
        id={(row) => String(row.partition)}
        most={8}
        columns={[
          { title: 'Partition', isName: true, cell: (row) => count(row.partition) },
          { title: 'Samples', isNumber: true, cell: (row) => count(row.samples) },
          { title: 'Distance', isNumber: true, cell: (row) => percent(row.distance) },
          { title: 'Most above its share', cell: (row) => {
            const most = leading(found, row);
            return most ? <><Name text={nameOf(most.label)} most={24} /> {percent(most.share)}<span class="muted"> instead of {percent(most.label.share)}</span></> : 'none';
          } },
          { title: 'Numbers', from: 'medium', cell: (row) => (row.is_exact ? 'counts' : 'estimates') },
        ]}
      />
    </>
  );
}
