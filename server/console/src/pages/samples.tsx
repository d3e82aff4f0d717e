// Samples of a version as cards: in their order in the dataset, or as an epoch reads them.

import { useRef, useState } from 'preact/hooks';
import { getPage, type Page } from '../api/client';
import { useAnswer, useAnswers } from '../api/poll';
import type { Found, PlanInfo, SampleRow, SampleRows, VersionSummary } from '../api/types';
import { clock, count, plural, short } from '../format';
import { datasetHref, part, sampleHref, whole } from '../route';
import { visible } from '../text';
import { Missing, Name } from '../ui/parts';
import { Brief, Value } from '../ui/value';
import { cardsOf, leadOf } from '../values';

/** Columns of a card, besides the one that it leads with. */
const LINES = 6;
/** The most positions of one question to a plan. */
const MOST_POSITIONS = 10_000;
const MOST_EPOCH = 2 ** 32 - 1;

interface Props {
  name: string;
  version: string;
  /** The version of the address, if it has one. */
  kept: string | undefined;
  summary: VersionSummary;
  query: URLSearchParams;
}

export function Samples(props: Props) {
  const { name, kept, query } = props;
  const isEpoch = query.get('order') === 'epoch';
  return (
    <section>
      <h2 class="visually-hidden">Samples</h2>
      <fieldset class="choice orders">
        <legend class="visually-hidden">Order of the samples</legend>
        {[['', 'By number'], ['epoch', 'As an epoch reads them']].map(([order, title]) => (
          <label key={order}>
            <input type="radio" name="order" checked={isEpoch === (order === 'epoch')} onChange={() => location.replace(datasetHref(name, { version: kept, order }))} />
            <span>{title}</span>
          </label>
        ))}
      </fieldset>
      {isEpoch ? <Epoch {...props} /> : <InOrder {...props} />}
    </section>
  );
}

function InOrder({ name, version, kept, summary, query }: Props) {
  const { samples } = summary;
  const cards = cardsOf(summary);
  const last = Math.max(0, samples - 1);
  const from = Math.min(last, whole(query.get('from'), 0));
  const [fault, setFault] = useState('');
  const field = useRef<HTMLInputElement>(null);
  const to = (sample: number): string => datasetHref(name, { version: kept, from: sample > 0 ? String(sample) : '' });
  const go = (event: Event): void => {
    event.preventDefault();
    const wanted = whole(field.current?.value.replace(/[,\s]/g, ''), -1, last);
    setFault(wanted < 0 ? `Enter a number from 0 to ${count(last)}.` : '');
    if (wanted >= 0) location.hash = to(wanted);
  };
  if (samples === 0) return <p class="muted empty">The version has no sample.</p>;
  const end = Math.min(samples, from + cards);
  return (
    <>
      <div class="tools steps">
        <p role="status">Samples {count(from)} to {count(end - 1)} of {count(samples)}</p>
        <Pages before={from > 0 ? to(Math.max(0, from - cards)) : undefined} after={end < samples ? to(end) : undefined} />
        <form class="tools" onSubmit={go} noValidate>
          <label class="field inline">
            <span>Go to sample</span>
            <input key={from} type="text" inputMode="numeric" class="size" defaultValue={String(from)} ref={field} autocomplete="off" />
          </label>
          <button type="submit">Go</button>
        </form>
        <p role="alert" class="refusal">{fault}</p>
      </div>
      <Cards name={name} version={version} summary={summary} path={`v1/versions/${part(version)}/samples?from=${from}&limit=${cards}`} />
    </>
  );
}

function Pages({ before, after, of = '' }: { before: string | undefined; after: string | undefined; of?: string }) {
  const link = (href: string | undefined, text: string) => (href === undefined ? <span class="muted" aria-hidden="true">{text}</span> : <a href={href}>{text}</a>);
  return <nav class="before-after" aria-label={`Other ${of || 'sample'}s`}>{link(before, `‹ Previous${of && ` ${of}`}`)}{link(after, `Next${of && ` ${of}`} ›`)}</nav>;
}

/** The plans of a version, the newest first. */
export function usePlans(version: string) {
  const [answer = {}] = useAnswers<Page<PlanInfo>>([`v1/plans?version=${part(version)}&limit=10000`], 60_000, getPage<PlanInfo>);
  return { answer, plans: [...(answer.data?.items ?? [])].reverse() };
}

export const planTitle = (plan: PlanInfo): string => `${visible(short(plan.id))}, of ${clock(plan.created)}`;

interface Step {
  plan: string;
  epoch: number;
  position: number;
  batch: number;
  rank: string;
  world: number;
  /** Without a number those that the plan has for steps of this size. */
  virtualRanks: string;
}

export function stepHref(name: string, version: string | undefined, { plan, epoch, position, batch, rank, world, virtualRanks }: Step, skip = 0): string {
  return datasetHref(name, { version, order: 'epoch', plan, epoch: String(epoch), position: String(position), batch: String(batch), rank, world: rank === '' ? '' : String(world), virtual_ranks: virtualRanks, skip: skip > 0 ? String(skip) : '' });
}

function Epoch(props: Props) {
  const { answer, plans } = usePlans(props.version);
  const { query } = props;
  const plan = plans.find((one) => one.id === query.get('plan')) ?? plans[0];
  if (!answer.data) return <Missing of="the plans" loaded={answer} />;
  if (!plan) return <p class="muted empty">No plan orders this version. Make one: <code>shardctl partition</code>.</p>;
  const rank = whole(query.get('rank'), -1);
  const step: Step = {
    plan: plan.id,
    epoch: whole(query.get('epoch'), 0, MOST_EPOCH),
    position: whole(query.get('position'), 0),
    batch: Math.max(1, whole(query.get('batch'), 64, MOST_POSITIONS)),
    rank: rank < 0 ? '' : String(rank),
    world: Math.max(1, whole(query.get('world'), 1)),
    virtualRanks: whole(query.get('virtual_ranks'), 0) > 0 ? String(whole(query.get('virtual_ranks'), 0)) : '',
  };
  return (
    <>
      <StepForm key={JSON.stringify(step)} {...props} plans={plans} step={step} />
      <StepSamples {...props} step={step} />
    </>
  );
}

function StepForm({ name, kept, plans, step }: Props & { plans: PlanInfo[]; step: Step }) {
  const [draft, setDraft] = useState({
    plan: step.plan, epoch: String(step.epoch), step: String(Math.floor(step.position / step.batch)), position: String(step.position), batch: String(step.batch), rank: step.rank, world: step.rank === '' ? '' : String(step.world), virtualRanks: step.virtualRanks,
  });
  const [fault, setFault] = useState('');
  type Field = keyof typeof draft;
  const change = (field: Field, value: string): void => {
    const next = { ...draft, [field]: value };
    // The step and the position say the same; the last one entered counts.
    const batch = whole(next.batch, 0);
    if (field === 'position' && batch > 0) next.step = String(Math.floor(whole(value, 0) / batch));
    else if (field === 'step' || field === 'batch') next.position = String(whole(next.step, 0) * batch);
    setDraft(next);
  };
  const submit = (event: Event): void => {
    event.preventDefault();
    const [epoch, position, batch] = [whole(draft.epoch, -1, MOST_EPOCH), whole(draft.position, -1), whole(draft.batch, 0, MOST_POSITIONS)];
    const rank = whole(draft.rank, -1);
    const world = whole(draft.world, 0);
    const wrong = epoch < 0 ? 'Enter the epoch as a whole number from 0.'
      : position < 0 || whole(draft.step, -1) < 0 ? 'Enter the step, or the position, as a whole number from 0.'
      : batch < 1 ? `Enter a global batch size from 1 to ${count(MOST_POSITIONS)}.`
      : draft.rank !== '' && (rank < 0 || rank >= world) ? 'Enter a rank from 0, and a world size above it.'
      : draft.virtualRanks !== '' && whole(draft.virtualRanks, 0) < 1 ? 'Enter the virtual ranks as a whole number from 1.' : '';
    setFault(wrong);
    if (wrong === '') location.hash = stepHref(name, kept, { plan: draft.plan, epoch, position, batch, rank: rank < 0 ? '' : String(rank), world: Math.max(1, world), virtualRanks: draft.virtualRanks });
  };
  const field = (of: Field, title: string, hint = '') => (
    <label class="field">
      <span>{title}</span>
      <input type="text" inputMode="numeric" class="size" value={draft[of]} placeholder={hint} onInput={(event) => change(of, event.currentTarget.value.trim())} autocomplete="off" />
    </label>
  );
  return (
    <form class="tools step-form" onSubmit={submit} noValidate aria-label="As an epoch reads them">
      <label class="field">
        <span>Plan</span>
        <select value={draft.plan} onChange={(event) => change('plan', event.currentTarget.value)}>
          {plans.map((plan) => <option key={plan.id} value={plan.id}>{planTitle(plan)}</option>)}
        </select>
      </label>
      {field('epoch', 'Epoch')}
      {field('batch', 'Global batch size')}
      {field('step', 'Step')}
      {field('position', 'or position')}
      {field('rank', 'Rank', 'all')}
      {field('world', 'World size')}
      {field('virtualRanks', 'Virtual ranks', 'default')}
      <button type="submit" class="primary">Show</button>
      <p role="alert" class="refusal">{fault}</p>
    </form>
  );
}

function StepSamples({ name, version, kept, summary, query, step }: Props & { step: Step }) {
  const { plan, epoch, position, batch, rank, world, virtualRanks } = step;
  const found = useAnswer<Found[]>(`v1/plans/${part(plan)}/at?epoch=${epoch}&position=${position}&global_batch_size=${batch}${rank === '' ? '' : `&rank=${rank}&world=${world}`}${virtualRanks === '' ? '' : `&virtual_ranks=${virtualRanks}`}`, 15_000);
  const all = found.data ?? [];
  const cards = cardsOf(summary);
  const skip = Math.min(whole(query.get('skip'), 0), Math.max(0, all.length - 1));
  const shown = all.slice(skip, skip + cards);
  const to = (at: number): string => stepHref(name, kept, { ...step, position: at });
  return (
    <>
      <div class="tools steps">
        <p role="status">
          {found.data && <>{rank === '' ? '' : `Rank ${rank} reads `}{plural(all.length, 'sample')} of positions {count(position)} to {count(Math.min(summary.samples, position + batch) - 1)}{all.length > cards && <>; {count(skip + 1)} to {count(skip + shown.length)} here</>}</>}
        </p>
        {all.length > cards && <Pages before={skip > 0 ? stepHref(name, kept, step, Math.max(0, skip - cards)) : undefined} after={skip + cards < all.length ? stepHref(name, kept, step, skip + cards) : undefined} />}
        <Pages of="step" before={position > 0 ? to(Math.max(0, position - batch)) : undefined} after={position + batch < summary.samples ? to(position + batch) : undefined} />
      </div>
      {!found.data ? <Missing of="these positions" loaded={found} /> : shown.length === 0 ? <p class="muted empty">The rank reads no sample of this step.</p> : (
        <Cards name={name} version={version} summary={summary} path={`v1/versions/${part(version)}/samples?numbers=${shown.map((one) => one.sample).join(',')}`} found={shown} />
      )}
    </>
  );
}

function Cards({ name, version, summary, path, found }: { name: string; version: string; summary: VersionSummary; path: string; found?: Found[] }) {
  const answer = useAnswer<SampleRows>(path, 15_000);
  // The cards of before stay until the next ones are there.
  const last = useRef<SampleRow[] | undefined>(undefined);
  if (answer.data) last.current = answer.data.rows;
  const rows = answer.error ? answer.data?.rows : last.current;
  if (!rows) return <Missing of="the samples" loaded={answer} />;
  const places = new Map(found?.map((one) => [one.sample, one]));
  return (
    <ol class="cards" aria-busy={!answer.data}>
      {rows.map((row) => <Card key={row.sample} row={row} name={name} version={version} summary={summary} place={places.get(row.sample)} />)}
    </ol>
  );
}

function Card({ row, name, version, summary, place }: { row: SampleRow; name: string; version: string; summary: VersionSummary; place: Found | undefined }) {
  const lead = leadOf(row.values);
  const others = summary.columns.map((column, at) => ({ column, at })).filter(({ at }) => at !== lead);
  const [column, value] = [summary.columns[lead], row.values[lead]];
  return (
    <li class="card">
      <h3><a href={sampleHref(name, row.sample, version)}>Sample {count(row.sample)}</a>{place && <span class="muted where">position {count(place.position)}</span>}</h3>
      {column && value !== undefined && <div class="lead"><Value value={value} place={{ dataset: name, version, sample: row.sample, column: column.name }} /></div>}
      <dl>
        {place?.virtual_rank !== undefined && <div><dt>virtual rank</dt><dd>{count(place.virtual_rank)}</dd></div>}
        {others.slice(0, LINES).map(({ column: of, at }) => (
          <div key={at}><dt><Name text={of.name} most={20} /></dt><dd><Brief value={row.values[at] ?? null} /></dd></div>
        ))}
      </dl>
      {others.length > LINES && <p class="muted where">and {plural(others.length - LINES, 'column')} more</p>}
    </li>
  );
}
