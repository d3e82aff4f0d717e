// One sample: every value, and where the plans of its version read it.

import { useState } from 'preact/hooks';
import { useAnswer, useAnswers } from '../api/poll';
import type { Found, SampleRows, VersionSummary } from '../api/types';
import { count, NONE } from '../format';
import { datasetHref, part, sampleHref, whole } from '../route';
import { Digest, Fact, Missing, Name, Prose } from '../ui/parts';
import { Table } from '../ui/table';
import { useSeen, Value } from '../ui/value';
import { useVersion } from './dataset';
import { planTitle, stepHref, usePlans } from './samples';

/** The most plans that are asked for a sample. */
const PLANS = 20;

export function SamplePage({ name, sample, query }: { name: string; sample: number; query: URLSearchParams }) {
  const { info, version, summary } = useVersion(name, query);
  const kept = query.get('version') ?? undefined;
  return (
    <>
      <p class="up"><a href="#/datasets">Datasets</a> › <a href={datasetHref(name, { version: kept, from: String(sample) })}><Name text={name} most={40} /></a></p>
      <h1 tabIndex={-1}>Sample {count(sample)}</h1>
      {!summary.data || version === undefined ? <Missing of={version === undefined ? 'this dataset' : 'this version'} loaded={version === undefined ? info : summary} /> : (
        <Sample name={name} version={version} sample={sample} summary={summary.data} />
      )}
    </>
  );
}

function Sample({ name, version, sample, summary }: { name: string; version: string; sample: number; summary: VersionSummary }) {
  const answer = useAnswer<SampleRows>(`v1/versions/${part(version)}/samples?from=${sample}&limit=1`, 15_000);
  const row = answer.data?.rows[0];
  if (!answer.data) return <Missing of="this sample" loaded={answer} />;
  if (!row) return <p class="muted empty">The version has {count(summary.samples)} samples, from 0.</p>;
  return (
    <>
      <nav class="before-after" aria-label="Other samples">
        {sample > 0 && <a href={sampleHref(name, sample - 1, version)}>‹ Previous</a>}
        {sample + 1 < summary.samples && <a href={sampleHref(name, sample + 1, version)}>Next ›</a>}
      </nav>
      <dl class="facts">
        <Fact name="Version"><Digest text={version} /></Fact>
        <Fact name="Shard"><Digest text={row.shard} /></Fact>
        <Fact name="Row of the shard">{count(row.row)}</Fact>
        <div class="fact wide"><dt>Digest of the row</dt><dd><code class="whole"><Name text={row.digest} most={64} /></code></dd></div>
      </dl>
      <section>
        <h2>Values</h2>
        <dl class="values">
          {summary.columns.map((column, at) => (
            <div key={at}>
              <dt><Name text={column.name} most={60} /> <code class="muted"><Name text={column.type} most={60} /></code></dt>
              <dd><Value value={row.values[at] ?? null} place={{ dataset: name, version, sample, column: column.name }} isWhole /></dd>
            </div>
          ))}
        </dl>
      </section>
      <Uses name={name} version={version} sample={sample} />
    </>
  );
}

function Uses(props: { name: string; version: string; sample: number }) {
  const { element, isSeen } = useSeen<HTMLElement>();
  return (
    <section ref={element}>
      <h2>Where it is used</h2>
      {isSeen && <UsesOf {...props} />}
    </section>
  );
}

function UsesOf({ name, version, sample }: { name: string; version: string; sample: number }) {
  const [epoch, setEpoch] = useState('0');
  const [batch, setBatch] = useState('64');
  const { answer, plans } = usePlans(version);
  const asked = plans.slice(0, PLANS);
  const [of, size] = [whole(epoch, -1, 2 ** 32 - 1), whole(batch, 0, 10_000)];
  const found = useAnswers<Found>(of < 0 ? [] : asked.map((plan) => `v1/plans/${part(plan.id)}/where?sample=${sample}&epoch=${of}`), 15_000);
  if (!answer.data) return <Missing of="the plans" loaded={answer} />;
  if (plans.length === 0) return <p class="muted empty">No plan orders this version.</p>;
  return (
    <>
      <div class="tools">
        <label class="field inline"><span>Epoch</span><input type="text" inputMode="numeric" class="size" value={epoch} onInput={(event) => setEpoch(event.currentTarget.value.trim())} autocomplete="off" /></label>
        <label class="field inline"><span>Global batch size</span><input type="text" inputMode="numeric" class="size" value={batch} onInput={(event) => setBatch(event.currentTarget.value.trim())} autocomplete="off" /></label>
        <p role="alert" class="refusal">{of < 0 ? 'Enter the epoch as a whole number from 0.' : size < 1 ? 'Enter a global batch size from 1 to 10,000.' : ''}</p>
      </div>
      <Table
        caption={plans.length > PLANS ? `The newest ${PLANS} of ${count(plans.length)} plans` : 'Plans of the version, the newest first'}
        isCaptionHidden={plans.length <= PLANS}
        rows={asked.map((plan, at) => ({ plan, loaded: found[at] ?? {} }))}
        id={({ plan }) => plan.id}
        columns={[
          { title: 'Plan', isName: true, cell: ({ plan }) => planTitle(plan) },
          { title: 'Position', isNumber: true, cell: ({ loaded }) => (loaded.error ? <Prose text={loaded.error.message} most={120} /> : count(loaded.data?.position)) },
          { title: 'Step', isNumber: true, cell: ({ loaded: { data } }) => (data && size > 0 ? count(Math.floor(data.position / size)) : NONE) },
          { title: 'Partition', isNumber: true, cell: ({ loaded }) => count(loaded.data?.partition) },
          {
            title: 'Samples read with it',
            cell: ({ plan, loaded: { data } }) => (data && size > 0 ? <a href={stepHref(name, version, { plan: plan.id, epoch: of, position: data.position - (data.position % size), batch: size, rank: '', world: 1, virtualRanks: '' })}>Show the step</a> : NONE),
          },
        ]}
      />
    </>
  );
}
