// Who sends to whom in a run: the bytes of its exchange between each two hosts, beside those that the plan lets expect.

import { useState } from 'preact/hooks';
import { useAnswers } from '../api/poll';
import type { Traffic } from '../api/types';
import { bytes, NONE, plural } from '../format';
import { nodeHref } from '../route';
import { cut, visible } from '../text';
import { Missing, Name, Stale } from '../ui/parts';
import { Table } from '../ui/table';

type Kind = 'exchange' | 'served';
const KINDS: [Kind, string][] = [['exchange', 'By the exchange'], ['served', 'On request']];

export function SendersAndReceivers({ path }: { path: string }) {
  const [kind, setKind] = useState<Kind>('exchange');
  const [answer = {}] = useAnswers<Traffic>([`${path}/traffic`], 15_000);
  const { data } = answer;
  const silent = data?.unanswered?.length ?? 0;
  return (
    <section>
      <div class="title-row">
        <h2>Who sends to whom</h2>
        <fieldset class="choice">
          <legend class="visually-hidden">Bytes sent</legend>
          {KINDS.map(([key, title]) => <label key={key}><input type="radio" name="sent" checked={key === kind} onChange={() => setKind(key)} /><span>{title}</span></label>)}
        </fieldset>
      </div>
      {!data ? <Missing of="the traffic of this run" loaded={answer} /> : (
        <>
          <p class="muted note">
            Bytes since each sender started{kind === 'exchange' && ', and below them its share of the same total by plan and placement'}.
            {data.nodes.length < data.hosts && ` The first ${data.nodes.length} of ${plural(data.hosts, 'host')}.`}
            {silent > 0 && ` ${plural(silent, 'host')} did not answer.`}
          </p>
          <Stale loaded={answer} />
          <Matrix traffic={data} kind={kind} />
        </>
      )}
    </section>
  );
}

function Matrix({ traffic, kind }: { traffic: Traffic; kind: Kind }) {
  const rows = traffic[kind];
  const most = Math.max(1, ...rows.flat());
  return (
    <Table
      caption="Bytes by sender and receiver"
      isCaptionHidden
      rows={traffic.nodes.map((node, at) => ({ node, at }))}
      id={({ node }) => node}
      columns={[
        { title: 'From', isName: true, cell: ({ node }) => <a href={nodeHref(node)}><Name text={node} most={24} /></a> },
        ...traffic.nodes.map((to, column) => ({
          title: `to ${cut(visible(to), 24)}`,
          isNumber: true,
          cell: ({ at }: { at: number }) => {
            if (at === column) return <span class="muted">{NONE}</span>;
            const sent = rows[at]?.[column] ?? 0;
            return (
              <span class="pair">
                <span>{bytes(sent)}</span>
                {kind === 'exchange' && <span class="muted">{bytes(traffic.predicted[at]?.[column])}</span>}
                <i aria-hidden="true" style={{ width: `${(100 * sent) / most}%` }} />
              </span>
            );
          },
        })),
        { title: 'All', isNumber: true, cell: ({ at }) => bytes((rows[at] ?? []).reduce((all, one) => all + one, 0)) },
      ]}
    />
  );
}
