// All datasets, by name.

import { usePage } from '../api/poll';
import type { DatasetInfo } from '../api/types';
import { bytes, count } from '../format';
import { datasetHref, listHref } from '../route';
import { Digest, Missing, Name, Stale, Time } from '../ui/parts';
import { Table } from '../ui/table';

const ROWS = 100;

export function DatasetsPage({ query }: { query: URLSearchParams }) {
  const token = query.get('page') ?? '';
  const { page: datasets, next } = usePage<DatasetInfo>(`v1/datasets?limit=${ROWS}`, token, 15_000);
  return (
    <>
      <h1 tabIndex={-1}>Datasets</h1>
      {!datasets.data ? <Missing of="the list of datasets" loaded={datasets} /> : (
        <>
          <Stale loaded={datasets} />
          <Table
            caption="All datasets, by name"
            isCaptionHidden
            rows={datasets.data.items}
            id={(dataset) => dataset.name}
            empty="The catalog has no dataset. Ingest makes one: shardctl ingest --help."
            columns={[
              { title: 'Dataset', isName: true, cell: ({ name }) => <a href={datasetHref(name)}><Name text={name} most={40} /></a> },
              { title: 'Samples', isNumber: true, cell: ({ samples }) => count(samples) },
              { title: 'Size', isNumber: true, cell: ({ bytes: size }) => bytes(size) },
              { title: 'Shards', isNumber: true, from: 'medium', cell: ({ shards }) => count(shards) },
              { title: 'Version', from: 'medium', cell: ({ version }) => <Digest text={version} /> },
              { title: 'Commits', isNumber: true, from: 'wide', cell: ({ commits }) => count(commits) },
              { title: 'Last commit', from: 'medium', cell: ({ committed_at }) => <Time at={committed_at} /> },
            ]}
          />
          <p class="pages">
            {token !== '' && <a href="#/datasets">First page</a>}
            {next !== undefined && <a href={listHref('datasets', { page: next })}>Next page</a>}
          </p>
        </>
      )}
    </>
  );
}
