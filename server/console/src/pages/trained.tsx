// The data that a training read, from its record: versions, samples of each epoch, media; and the commands for the documents about it.

import { useAnswer } from '../api/poll';
import { useOfRecord } from '../api/records';
import type { DataVersion, RecordInfo, TrainingData } from '../api/types';
import { bytes, count, NONE, plural, short } from '../format';
import { datasetHref, part } from '../route';
import { shell, visible } from '../text';
import { Command, Digest, Fact, Missing, Name, node } from '../ui/parts';
import { Table } from '../ui/table';

const NOUNS: Record<string, string> = { tokens: 'tokens', 'bytes-of-text': 'bytes of text', pictures: 'images', recordings: 'recordings', clips: 'video files', samples: 'samples' };

export function TrainedOn({ name, record }: { name: string; record: RecordInfo }) {
  const answer = useAnswer<TrainingData>(`v1/runs/${part(name)}/records/${part(record.id)}/summary`, 30_000);
  const data = useOfRecord(answer, name, record);
  const training = data?.trainings[0];
  return (
    <section>
      <h2>Trained on</h2>
      {!data || !training ? <Missing of="the data of this training" loaded={answer} /> : (
        <>
          <dl class="facts">
            <Fact name="Samples read">{count(data.samples_read)}</Fact>
            <Fact name="Epochs">{count(data.epochs)}</Fact>
            {training.steps_unknown > 0 && <Fact name="Not in the record">{plural(training.steps_unknown, 'step')} before it</Fact>}
            <Fact name="Order"><Digest text={training.plan} /></Fact>
          </dl>
          <Versions versions={data.versions} isNamed={record.dataset !== undefined} />
          {training.epochs.length > 1 && (
            <Table
              caption={`Samples read by epoch${data.epochs > training.epochs.length ? `: the last ${count(training.epochs.length)} of ${count(data.epochs)}` : ''}`}
              rows={training.epochs}
              id={(epoch) => String(epoch.epoch)}
              most={6}
              columns={[
                { title: 'Epoch', isName: true, cell: (epoch) => count(epoch.epoch) },
                { title: 'Samples read', isNumber: true, cell: (epoch) => count(epoch.samples) },
                { title: 'Of', isNumber: true, cell: () => count(data.versions[0]?.samples) },
              ]}
            />
          )}
          <Documents record={record} />
        </>
      )}
    </section>
  );
}

function Versions({ versions, isNamed }: { versions: DataVersion[]; isNamed: boolean }) {
  return (
    <Table
      caption="Versions that the training read"
      isCaptionHidden
      rows={versions}
      id={(version) => version.version}
      columns={[
        { title: 'Dataset', isName: true, cell: (version) => (isNamed ? <a href={datasetHref(version.dataset, { version: version.version })}><Name text={version.dataset} most={28} /></a> : NONE) },
        { title: 'Version', cell: (version) => <Digest text={version.version} /> },
        { title: 'Samples read', isNumber: true, cell: (version) => `${count(version.samples_read)} of ${count(version.samples)}` },
        { title: 'Content read', cell: (version) => version.amounts.map(({ unit, amount }) => `${count(amount)} ${NOUNS[unit] ?? visible(unit)}`).join(', ') || NONE },
        { title: 'Formats', from: 'medium', cell: (version) => <Name text={[...new Set(version.columns.flatMap((column) => column.media_type ?? []))].join(', ') || NONE} most={40} /> },
        { title: 'Size', isNumber: true, from: 'medium', cell: (version) => bytes(version.bytes) },
        { title: 'Derived from', from: 'medium', cell: (version) => (version.derived_from.length === 0 ? NONE : <><Digest text={version.derived_from[0]} />{version.derived_from.length > 1 && ` and ${count(version.derived_from.length - 1)} before it`}</>) },
      ]}
    />
  );
}

/** Documents that a person publishes. Licences and sources are in a file, as no version has them. */
function Documents({ record }: { record: RecordInfo }) {
  const summary = `shardctl --server ${node()} runs summary ${short(record.id)} --record ${shell(record.store)}`;
  const commands: [string, string][] = [
    ['A file for licences, sources and the provider, which you fill in', '--write-about about.toml'],
    ['The summary of training content that the AI Act asks for', '--about about.toml --format eu-template > summary.md'],
    ['Croissant metadata of the dataset', '--about about.toml --format croissant > croissant.json'],
    ['The root of each epoch, by which shardctl audit proves single samples', '--roots --json'],
  ];
  return (
    <details>
      <summary>Licences, sources and documents</summary>
      <p class="muted">A version has no licence and no source: you declare them. These commands write what you publish.</p>
      <dl class="commands">
        {commands.map(([title, more]) => (
          <div key={title}>
            <dt>{title}</dt>
            <dd><Command text={`${summary} ${more}`} /></dd>
          </div>
        ))}
      </dl>
    </details>
  );
}
