// One shard: the nodes whose caches hold its grains, and the runs that read it.

import { useAnswer } from '../api/poll';
import type { CachedAt, Copies, RunOfShard } from '../api/types';
import { bytes, count, percent, plural } from '../format';
import { nodeHref, part, runHref } from '../route';
import { cut, visible } from '../text';
import { Digest, Fact, Missing, Name, Stale } from '../ui/parts';
import { Table } from '../ui/table';

/** How many copies of a grain there are on average. */
const copies = (run: RunOfShard): string => (run.grains > 0 ? (run.cached / run.grains).toFixed(2) : '–');

export function ShardPage({ name }: { name: string }) {
  const answer = useAnswer<Copies>(`v1/shards/${part(name)}/copies`, 15_000);
  const { data } = answer;
  return (
    <>
      <p class="up"><a href="#/shards">Shards</a></p>
      <h1 tabIndex={-1}>Shard <code class="digest whole">{cut(visible(name), 64)}</code></h1>
      {!data ? <Missing of="this shard" loaded={answer} /> : (
        <>
          <dl class="facts">
            <Fact name="Size in the store">{bytes(data.bytes)}</Fact>
            <Fact name="Runs that read it">{count(data.runs.length)}</Fact>
            <Fact name="Nodes with grains">{count(new Set(data.nodes.filter((at) => at.cached > 0).map((at) => at.node)).size)}</Fact>
          </dl>
          <Stale loaded={answer} />
          {(data.unanswered?.length ?? 0) > 0 && <p class="is-warning">{plural(data.unanswered?.length ?? 0, 'node')} did not answer: <Name text={data.unanswered?.join(', ')} most={120} /></p>}
          <section>
            <h2>Runs</h2>
            <Table
              caption="Runs that read this shard"
              isCaptionHidden
              rows={data.runs}
              id={(run) => run.run}
              empty="No run of the nodes reads this shard."
              most={12}
              columns={[
                { title: 'Run', isName: true, cell: (run) => <a href={runHref(run.run)}><Name text={run.run} most={32} /></a> },
                { title: 'Grains', isNumber: true, cell: (run) => count(run.grains) },
                { title: 'Copies of a grain', isNumber: true, cell: copies },
                { title: 'Plan', from: 'medium', cell: (run) => <Digest text={run.plan} /> },
                { title: 'Version', from: 'medium', cell: (run) => <Digest text={run.version} /> },
              ]}
            />
          </section>
          <section>
            <h2>Caches</h2>
            {data.more_nodes > 0 && <p class="muted">The {count(data.nodes.length)} nodes with most grains, and {count(data.more_nodes)} more.</p>}
            <Table
              caption="Nodes with grains of this shard"
              isCaptionHidden
              rows={data.nodes}
              id={(at) => `${at.node} ${at.run}`}
              empty="No node has a grain of this shard in its cache."
              most={24}
              columns={[
                { title: 'Node', isName: true, cell: (at) => <a href={nodeHref(at.node)}><Name text={at.node} most={24} /></a> },
                { title: 'Run', cell: (at) => <Name text={at.run} most={24} /> },
                { title: 'Cached', isNumber: true, cell: (at: CachedAt) => <>{count(at.cached)} of {count(at.grains)} <span class="from-medium muted">{percent(at.grains > 0 ? at.cached / at.grains : 0)}</span></> },
                { title: 'Hosted now', isNumber: true, cell: (at) => count(at.hosted) },
                { title: 'Bytes', isNumber: true, from: 'medium', cell: (at) => bytes(at.bytes) },
              ]}
            />
          </section>
        </>
      )}
    </>
  );
}
