// How a run trained, from its record in the store: curves by step, and from a step to the samples that its ranks read.

import { useEffect, useRef, useState } from 'preact/hooks';
import { Refused } from '../api/client';
import { type Loaded, useAnswer, useAnswers, useKept } from '../api/poll';
import { useOfRecord } from '../api/records';
import type { Course, Found, RecordInfo, RunInfo, StepExplained, StepLosses } from '../api/types';
import { bytes, clock, count, duration, isNumber, NONE, percent, plural, short } from '../format';
import { datasetHref, part, runHref, sampleHref, whole } from '../route';
import { overlay, pointAt } from '../steps';
import { cut, shell, visible } from '../text';
import { Chart } from '../ui/chart';
import { Command, Digest, Fact, Mark, type MarkKind, Missing, Name, node, Stale, Time } from '../ui/parts';
import { Table } from '../ui/table';
import { figure } from '../values';
import { stepHref } from './samples';
import { TrainedOn } from './trained';

/** Points of a curve. */
const POINTS = 240;
/** Samples of a virtual rank that are named. */
const NAMED = 6;
/** Samples with the largest losses that are listed. */
const LARGEST = 100;
/** The most samples of a step that are asked for. */
const MOST_SAMPLES = 10_000;
const EVERY = 15_000;

/** A loss may be no number, and that is what one looks for. */
const value = (of: number | null | undefined): string => (isNumber(of) ? figure(of) : 'not a number');
const mark = (of: unknown): string => (isNumber(of) ? figure(of) : NONE);

const ENDINGS: Record<string, [MarkKind, string, string]> = {
  underway: ['half', 'good', 'underway'],
  trained: ['good', 'good', 'trained to the end'],
  stopped: ['idle', 'muted', 'stopped'],
  failed: ['critical', 'critical', 'failed'],
};

/** The parts of the address: the record, the run to compare with, the step. */
type Settings = { record?: string | undefined; with?: string | undefined; step?: string | undefined };

export function Training({ name, query }: { name: string; query: URLSearchParams }) {
  const records = useAnswer<RecordInfo[]>(`v1/runs/${part(name)}/records`, EVERY);
  const all = records.data ?? [];
  const record = all.find((one) => one.id === query.get('record')) ?? all[0];
  const other = query.get('with') ?? '';
  const kept: Settings = { record: query.get('record') ?? undefined, with: other, step: query.get('step') ?? undefined };
  const to = (change: Settings): string => runHref(name, { ...kept, ...change });
  return (
    <>
      <section>
        <div class="title-row">
          <h2>Training</h2>
          {all.length > 1 && (
            <label class="field inline">
              <span>Record</span>
              <select value={record?.id} onChange={(event) => location.replace(to({ record: event.currentTarget.value, step: '' }))}>
                {all.map((one) => <option key={one.id} value={one.id}>{`${short(one.id)}, ${count(one.end)} steps, ${clock(one.written)}`}</option>)}
              </select>
            </label>
          )}
          {record && <Compare other={other} to={(run) => to({ with: run })} />}
        </div>
        {!records.data ? <Missing of="the records of this run" loaded={records} /> : !record ? (
          <p class="muted empty">The store has no record of this run. <code>shardtrain --record DIR|URL</code> writes one into the store of the nodes.</p>
        ) : (
          <>
            <Stale loaded={records} />
            <Recorded record={record} />
            <Curves name={name} record={record} other={other} pick={(step) => (location.hash = to({ step: String(step) }))} />
            <OneStep name={name} record={record} step={query.get('step')} to={(step) => to({ step })} />
          </>
        )}
      </section>
      {record && <TrainedOn name={name} record={record} />}
    </>
  );
}

/** The run whose loss is drawn over that of this one. */
function Compare({ other, to }: { other: string; to: (run: string) => string }) {
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => {
    if (field.current) field.current.value = other;
  }, [other]);
  const runs = useAnswer<RunInfo[]>('v1/runs?limit=1000', 60_000);
  const submit = (event: Event): void => {
    event.preventDefault();
    location.replace(to(field.current?.value.trim() ?? ''));
  };
  return (
    <form class="tools" onSubmit={submit}>
      <label class="field inline">
        <span>Compare with run</span>
        <input type="search" list="run-names" class="name" defaultValue={other} ref={field} maxLength={128} autocomplete="off" spellcheck={false} />
      </label>
      <datalist id="run-names">{(runs.data ?? []).map((run) => <option key={run.id} value={run.id} />)}</datalist>
      <button type="submit">Compare</button>
    </form>
  );
}

function Recorded({ record }: { record: RecordInfo }) {
  const [kind, tone, words] = ENDINGS[record.ending] ?? ['idle', 'muted', String(record.ending)];
  const last = record.launches.at(-1);
  return (
    <>
      <dl class="facts">
        <Fact name="State"><span class="state"><Mark kind={kind} tone={tone} /> {words}</span></Fact>
        <Fact name="Steps">{count(record.end)} of {count(record.of)}</Fact>
        <Fact name="Samples of a step">{count(record.global_batch_size)}</Fact>
        <Fact name="Dataset">{record.dataset === undefined ? <Digest text={record.version} /> : <a href={datasetHref(record.dataset, { version: record.version })}><Name text={record.dataset} most={28} /></a>}</Fact>
        <Fact name="Last report"><Time at={record.written} /></Fact>
        <Fact name="Restarts">{count(Math.max(0, record.launches.length - 1))}</Fact>
        {last && <Fact name="Ranks">{count(last.world)}, <Name text={last.device} most={40} /></Fact>}
        {last?.memory_bytes !== undefined && <Fact name="Most memory of a rank">{bytes(last.memory_bytes)}</Fact>}
        {record.weights !== undefined && <Fact name="Weights"><Digest text={record.weights} /></Fact>}
      </dl>
      {record.reason !== undefined && <p class="is-critical">{cut(visible(record.reason), 400)}</p>}
      {record.launches.length > 1 && (
        <Table
          caption="Launches"
          rows={[...record.launches].reverse()}
          id={(launch) => `${launch.first_step} ${launch.started}`}
          most={6}
          columns={[
            { title: 'From step', isName: true, cell: (launch) => count(launch.first_step) },
            { title: 'Ranks', isNumber: true, cell: (launch) => count(launch.world) },
            { title: 'Began', cell: (launch) => <Time at={launch.started} /> },
            { title: 'Last report', from: 'medium', cell: (launch) => <Time at={launch.until} /> },
            { title: 'Device', cell: (launch) => <Name text={launch.device} most={40} /> },
            { title: 'Most memory', isNumber: true, cell: (launch) => bytes(launch.memory_bytes) },
          ]}
        />
      )}
      {record.checkpoints.count > 0 && <Checkpoints checkpoints={record.checkpoints} />}
    </>
  );
}

/** The checkpoints that the training wrote, the newest first. */
function Checkpoints({ checkpoints: { count: all, last } }: { checkpoints: RecordInfo['checkpoints'] }) {
  return (
    <Table
      caption={`Checkpoints${all > last.length ? `: the last ${count(last.length)} of ${count(all)}` : ''}`}
      rows={[...last].reverse()}
      id={(one, at) => `${at} ${one.step}`}
      most={6}
      columns={[
        { title: 'After step', isName: true, cell: (one) => count(one.step) },
        { title: 'Complete', cell: (one) => <Time at={one.at} /> },
        { title: 'Size', isNumber: true, cell: (one) => bytes(one.bytes) },
        { title: 'Written', isNumber: true, from: 'medium', cell: (one) => bytes(one.written_bytes) },
        { title: 'Took', isNumber: true, cell: (one) => duration(one.took_s) },
      ]}
    />
  );
}

const coursePath = (run: string, record: RecordInfo): string => `v1/runs/${part(run)}/records/${part(record.id)}/steps?points=${POINTS}`;

function Curves({ name, record, other, pick }: { name: string; record: RecordInfo; other: string; pick: (step: number) => void }) {
  const answer = useAnswer<Course>(coursePath(name, record), EVERY);
  // A training that is underway has another record every few steps: the curves of before stay until the next ones are there.
  const course = useOfRecord(answer, name, record);
  const [others = {}] = useAnswers<RecordInfo[]>(other === '' ? [] : [`v1/runs/${part(other)}/records`], EVERY);
  const newest = others.data?.[0];
  const [besides = {}] = useAnswers<Course>(newest ? [coursePath(other, newest)] : [], EVERY);
  const beside = useKept(besides.data, other);
  if (!course) return <Missing of="the curves" loaded={answer} />;
  const { points } = course;
  if (points.length === 0) return <p class="muted empty">The record has no step yet.</p>;
  const { steps, own, theirs } = overlay(points, (other !== '' && beside?.points) || []);
  const drawn = (title: string, format: (value: unknown) => string, of: (point: Course['points'][number]) => number | null, more: { label: string; points: (number | null | undefined)[]; colour: number }[] = []) => (
    <Chart
      title={title}
      times={steps}
      axis="step"
      format={format}
      empty="The record has none."
      onPick={(step) => pick(pointAt(points, step)?.step_of_max ?? step)}
      lines={[
        { label: name, points: own(of), colour: 0 },
        ...more,
        ...(other !== '' && beside ? [{ label: other === name ? `${other}, the newest record` : other, points: theirs(of), colour: 1, dashed: true }] : []),
      ]}
    />
  );
  const isGrouped = points.some((point) => point.steps > 1);
  return (
    <>
      <p class="muted note">
        {plural(record.end - record.first, 'step')}{isGrouped && `, ${count(points[0]?.steps)} in a point`}{course.is_sampled && ', some left out'}. Click a point, or press Enter on it, to see the samples of its step{isGrouped && ' with the largest loss'}.
      </p>
      {other !== '' && <Absent run={other} records={others} course={besides} />}
      <div class="charts">
        {drawn('Loss', mark, (point) => point.loss, isGrouped ? [{ label: 'largest of a step', points: own((point) => point.loss_max), colour: 2 }] : [])}
        {points.some((point) => point.accuracy > 0) && drawn('Right answers', percent, (point) => point.accuracy)}
        {drawn('Gradient norm', mark, (point) => point.gradient_norm)}
        {drawn('Learning rate', mark, (point) => point.learning_rate)}
      </div>
    </>
  );
}

/** Why a run that was asked for beside this one is not drawn. */
function Absent({ run, records, course }: { run: string; records: Loaded<RecordInfo[]>; course: Loaded<Course> }) {
  const error = records.error ?? course.error;
  const text = error ? `No curve of run ${cut(visible(run), 60)}: ${cut(visible(error.message), 200)}`
    : records.data?.length === 0 ? `The store has no record of run ${cut(visible(run), 60)}.` : '';
  return <p role="status" class="is-warning">{text}</p>;
}

function OneStep({ name, record, step, to }: { name: string; record: RecordInfo; step: string | null; to: (step: string) => string }) {
  const last = record.end - 1;
  const [fault, setFault] = useState('');
  const field = useRef<HTMLInputElement>(null);
  const chosen = whole(step, -1);
  useEffect(() => {
    if (field.current) field.current.value = chosen < 0 ? '' : String(chosen);
  }, [chosen]);
  const go = (event: Event): void => {
    event.preventDefault();
    const wanted = whole(field.current?.value.replace(/[,\s]/g, ''), -1, last);
    const isThere = wanted >= record.first;
    setFault(isThere ? '' : `Enter a step from ${count(record.first)} to ${count(last)}.`);
    if (isThere) location.hash = to(String(wanted));
  };
  if (last < record.first) return null;
  return (
    <>
      <div class="tools steps">
        <form class="tools" onSubmit={go} noValidate aria-label="A step of the training">
          <label class="field inline">
            <span>Step</span>
            <input type="text" inputMode="numeric" class="size" defaultValue={chosen < 0 ? '' : String(chosen)} ref={field} autocomplete="off" />
          </label>
          <button type="submit">Show</button>
        </form>
        {chosen >= 0 && (
          <nav class="before-after" aria-label="Other steps">
            {chosen > record.first && <a href={to(String(chosen - 1))}>‹ Previous step</a>}
            {chosen < last && <a href={to(String(chosen + 1))}>Next step ›</a>}
          </nav>
        )}
        <p role="alert" class="refusal">{fault}</p>
      </div>
      {chosen >= 0 && <Explained name={name} record={record} step={chosen} />}
    </>
  );
}

function Explained({ name, record, step }: { name: string; record: RecordInfo; step: number }) {
  const answer = useAnswer<StepExplained>(`v1/runs/${part(name)}/records/${part(record.id)}/steps/${step}`, EVERY);
  const of = useOfRecord(answer, name, record, String(step));
  const isSmall = of !== undefined && of.global_batch_size <= MOST_SAMPLES;
  const [found = {}] = useAnswers<Found[]>(of && isSmall
    ? [`v1/plans/${part(record.plan)}/at?epoch=${of.epoch}&position=${of.position}&global_batch_size=${of.global_batch_size}&world=${of.world}&virtual_ranks=${of.virtual_ranks}`]
    : [], EVERY);
  if (!of) return <Missing of={`step ${count(step)}`} loaded={answer} />;
  const { dataset } = record;
  const samplesOf = (virtualRank: number): Found[] => (found.data ?? []).filter((one) => one.virtual_rank === virtualRank);
  const read = found.data?.length;
  const show = (name: string, rank = ''): string => stepHref(name, record.version, { plan: record.plan, epoch: of.epoch, position: of.position, batch: of.global_batch_size, rank, world: of.world, virtualRanks: String(of.virtual_ranks) });
  return (
    <section aria-label={`Step ${count(step)}`}>
      <dl class="facts">
        <Fact name="Step">{count(of.step)}</Fact>
        <Fact name="Epoch">{count(of.epoch)}, its step {count(of.step_of_epoch)}</Fact>
        <Fact name="Loss">{value(of.loss)}</Fact>
        <Fact name="Gradient norm">{value(of.gradient_norm)}</Fact>
        <Fact name="Learning rate">{figure(of.learning_rate)}</Fact>
        <Fact name="Outcome">{of.is_skipped ? <span class="is-warning strong">skipped: it changed nothing</span> : 'applied'}</Fact>
      </dl>
      <p>
        It read {read === undefined ? '' : `${plural(read, 'sample')}, `}positions {count(of.position)} to {count(of.position + Math.max(1, read ?? of.global_batch_size) - 1)} of the epoch.
        {dataset !== undefined && isSmall && <>{' '}<a href={show(dataset)}>Show the samples</a></>}
      </p>
      {found.error && <Missing of="the samples of the step" loaded={found} />}
      <Table
        caption="The step by virtual rank"
        isCaptionHidden
        rows={of.shares}
        id={(share) => String(share.virtual_rank)}
        most={16}
        columns={[
          { title: 'Virtual rank', isName: true, cell: (share) => count(share.virtual_rank) },
          { title: 'Rank', isNumber: true, cell: (share) => (dataset !== undefined && isSmall ? <a href={show(dataset, String(share.rank))} aria-label={`Samples of rank ${share.rank}`}>{count(share.rank)}</a> : count(share.rank)) },
          { title: 'Loss', isNumber: true, cell: (share) => value(share.loss) },
          { title: 'Right', isNumber: true, from: 'medium', cell: (share) => `${count(share.correct)} of ${count(share.samples)}` },
          {
            title: 'Samples',
            cell: (share) => {
              const own = samplesOf(share.virtual_rank);
              if (own.length === 0) return NONE;
              return (
                <>
                  {own.slice(0, NAMED).map(({ sample }, at) => <span key={sample}>{at > 0 && ', '}{dataset === undefined ? count(sample) : <a href={sampleHref(dataset, sample, record.version)}>{count(sample)}</a>}</span>)}
                  {own.length > NAMED && <span class="muted"> and {count(own.length - NAMED)} more</span>}
                </>
              );
            },
          },
        ]}
      />
      <Losses name={name} record={record} step={step} />
    </section>
  );
}

/** The samples of the step by their loss, if these losses are saved; else the command that saves them. */
function Losses({ name, record, step }: { name: string; record: RecordInfo; step: number }) {
  const { count: saved, last } = record.losses;
  // Of many steps with saved losses the record lists the last ones: for a step before them the node knows.
  const isAsked = last.includes(step) || (saved > last.length && step < (last[0] ?? 0));
  const [answer = {}] = useAnswers<StepLosses>(isAsked ? [`v1/runs/${part(name)}/records/${part(record.id)}/steps/${step}/losses?limit=${LARGEST}`] : [], EVERY);
  const data = useOfRecord(answer, name, record, String(step));
  if (!isAsked || (!last.includes(step) && answer.error instanceof Refused && answer.error.status === 404)) {
    return (
      <div class="losses">
        <p class="muted">The loss of each sample of this step is not saved. This command trains up to the step, compares it with the record, and saves them:</p>
        <Command text={`shardtrain rerun ${short(record.id)} --sample-losses ${step} --save --record ${shell(record.store)} --server ${node()}`} />
      </div>
    );
  }
  if (!data) return <Missing of="the losses of the samples" loaded={answer} />;
  const { dataset } = record;
  return (
    <Table
      caption={`Samples by loss${data.samples > data.largest.length ? `: the first ${count(data.largest.length)} of ${count(data.samples)}` : ''}`}
      rows={data.largest}
      id={(one) => String(one.position)}
      most={16}
      columns={[
        { title: 'Sample', isName: true, cell: ({ sample }) => (dataset === undefined ? count(sample) : <a href={sampleHref(dataset, sample, record.version)}>{count(sample)}</a>) },
        { title: 'Loss', isNumber: true, cell: (one) => value(one.loss) },
        { title: 'Virtual rank', isNumber: true, cell: (one) => count(one.virtual_rank) },
        { title: 'Position', isNumber: true, from: 'medium', cell: (one) => count(one.position) },
      ]}
    />
  );
}
