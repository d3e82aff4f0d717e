// The frame around all pages: navigation, the token, whether the node answers, and the page of the address.

import { Component, type ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { auth, get, link, probe, setToken } from './api/client';
import { note } from './api/follow';
import { checked } from './api/check';
import { type Loaded, useAnswer, useAnswers } from './api/poll';
import type { Access, Overview } from './api/types';
import { between } from './journal';
import { DatasetPage } from './pages/dataset';
import { DatasetsPage } from './pages/datasets';
import { NodePage } from './pages/node';
import { NodesPage } from './pages/nodes';
import { OverviewPage } from './pages/overview';
import { RunPage } from './pages/run';
import { RunsPage } from './pages/runs';
import { SamplePage } from './pages/sample';
import { ShardPage } from './pages/shard';
import { ShardsPage } from './pages/shards';
import { parse, type Route } from './route';
import { useStore } from './store';
import { cut, sentence, visible } from './text';
import { choice, nextTheme, theme } from './theme';
import { Mark, Name, Prose, Time } from './ui/parts';
import { verdict } from './verdict';

const PAGES = [
  { pages: ['overview'], href: '#/', title: 'Overview' },
  { pages: ['nodes', 'node'], href: '#/nodes', title: 'Nodes' },
  { pages: ['shards', 'shard'], href: '#/shards', title: 'Shards' },
  { pages: ['datasets', 'dataset', 'sample'], href: '#/datasets', title: 'Datasets' },
  { pages: ['runs', 'run'], href: '#/runs', title: 'Runs' },
];

const getOverview = async (path: string, signal: AbortSignal): Promise<Overview> => checked(await get<unknown>(path, signal));

function useRoute(): Route {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const changed = (): void => setHash(location.hash);
    addEventListener('hashchange', changed);
    return () => removeEventListener('hashchange', changed);
  }, []);
  return parse(hash);
}

export function App() {
  const route = useRoute();
  const [overview = {}] = useAnswers<Overview>(['v1/overview'], route.page === 'overview' ? 2000 : 5000, getOverview);
  const access = useAnswer<Access>('v1/access', 60_000);
  const { token, asked, detail } = useStore(auth);
  const { downSince } = useStore(link);
  const mayAct = access.data !== undefined && (!access.data.required || access.data.role === 'admin');
  const main = useRef<HTMLElement>(null);
  const place = 'name' in route ? [route.page, route.name, 'sample' in route ? route.sample : '', 'sample' in route || route.page === 'dataset' ? (route.query.get('version') ?? '') : ''].join(' ') : route.page;
  useNotes(overview);
  useTitle(overview, route, downSince !== undefined);
  // A new page begins at its top, and with it who reads by ear.
  const shown = useRef(place);
  useEffect(() => {
    if (shown.current === place) return;
    shown.current = place;
    scrollTo(0, 0);
    main.current?.querySelector<HTMLElement>('h1')?.focus({ preventScroll: true });
  }, [place]);

  return (
    <>
      <a
        class="skip"
        href="#main"
        onClick={(event) => {
          // The fragment of the address names the page.
          event.preventDefault();
          main.current?.focus();
        }}
      >
        Skip to the content
      </a>
      <header class="top">
        <a class="brand" href="#/" aria-label="shardd, overview">shardd</a>
        <nav aria-label="Pages">
          {PAGES.map(({ pages, href, title }) => <a key={href} href={href} aria-current={pages.includes(route.page) ? 'page' : undefined}>{title}</a>)}
        </nav>
        <div class="about">
          {overview.data && (
            <span class="of-node" title="This node answers the console">
              <Name text={overview.data.node} most={20} /> · <Name text={overview.data.release} most={16} />
            </span>
          )}
          {overview.at !== undefined && (
            <span class={`as-of${downSince === undefined ? '' : ' is-old'}`} title="When the newest answer came">
              <Time at={overview.at / 1000} seconds />
            </span>
          )}
          {token !== '' && <button type="button" class="quiet from-medium" onClick={() => setToken('')}>Forget token</button>}
          <ThemeSwitch />
        </div>
      </header>
      <Away overview={overview} />
      <main id="main" ref={main} tabIndex={-1}>
        {asked && <TokenPanel hadToken={token !== ''} detail={detail} isAlone={overview.data === undefined} />}
        {!(asked && overview.data === undefined) && (
          <Guard key={place}>
            <Page route={route} overview={overview} mayAct={mayAct} />
          </Guard>
        )}
      </main>
      <footer>
        {overview.data && <p class="of-node-below"><Name text={overview.data.node} most={40} /> · shardd <Name text={overview.data.release} most={16} /></p>}
        {token !== '' && <p class="narrow-only"><button type="button" class="quiet" onClick={() => setToken('')}>Forget token</button></p>}
        <p><a href="./LICENSES.txt">Licences of the console</a></p>
      </footer>
    </>
  );
}

function Page({ route, overview, mayAct }: { route: Route; overview: Loaded<Overview>; mayAct: boolean }) {
  switch (route.page) {
    case 'overview':
      return <OverviewPage overview={overview} />;
    case 'nodes':
      return <NodesPage query={route.query} />;
    case 'node':
      return <NodePage name={route.name} mayAct={mayAct} />;
    case 'shard':
      return <ShardPage name={route.name} />;
    case 'shards':
      return <ShardsPage query={route.query} />;
    case 'datasets':
      return <DatasetsPage query={route.query} />;
    case 'dataset':
      return <DatasetPage name={route.name} query={route.query} />;
    case 'sample':
      return <SamplePage name={route.name} sample={route.sample} query={route.query} />;
    case 'runs':
      return <RunsPage query={route.query} overview={overview} />;
    case 'run':
      return <RunPage name={route.name} query={route.query} overview={overview} />;
    default:
      return (
        <>
          <h1 tabIndex={-1}>The console has no such page</h1>
          <p><a href="#/">Overview</a></p>
        </>
      );
  }
}

/** The journal has what changed between two overviews. */
function useNotes(overview: Loaded<Overview>): void {
  const before = useRef<Overview | undefined>(undefined);
  useEffect(() => {
    const { data } = overview;
    if (!data) return;
    if (before.current && data !== before.current) note(...between(before.current, data));
    before.current = data;
  }, [overview.data]);
  const { downSince } = useStore(link);
  const wasDown = useRef(false);
  useEffect(() => {
    const isDown = downSince !== undefined;
    if (isDown && !wasDown.current) note({ mark: 'critical', text: 'The node does not answer the console' });
    if (!isDown && wasDown.current) note({ mark: 'good', text: 'The node answers again' });
    wasDown.current = isDown;
  }, [downSince]);
}

function useTitle(overview: Loaded<Overview>, route: Route, isDown: boolean): void {
  const node = overview.data ? cut(visible(overview.data.node), 40) : '';
  const name = 'name' in route ? `${'sample' in route ? `sample ${route.sample} of ` : ''}${cut(visible(route.name), 40)}` : '';
  const state = isDown ? 'no answer' : overview.data ? verdict(overview.data).brief : '';
  useEffect(() => {
    document.title = [name, state, node ? `shardd ${node}` : 'shardd'].filter((part) => part !== '').join(' · ');
  }, [name, state, node]);
}

/** The node does not answer: since when, and when the page asks again. */
function Away({ overview }: { overview: Loaded<Overview> }) {
  const { downSince, tryAt } = useStore(link);
  const [, tick] = useState(0);
  useEffect(() => {
    if (downSince === undefined) return;
    const timer = setInterval(() => tick((number) => number + 1), 1000);
    return () => clearInterval(timer);
  }, [downSince]);
  if (downSince === undefined) return null;
  const wait = Math.max(0, Math.ceil(((tryAt ?? 0) - Date.now()) / 1000));
  const name = overview.data ? `Node ${cut(visible(overview.data.node), 40)}` : 'The node';
  return (
    <section class="away" aria-label="Connection">
      <p role="alert">
        <Mark kind="critical" /> {name} does not answer since <Time at={downSince / 1000} seconds />.
      </p>
      <p>
        {overview.at !== undefined && <>The page shows the state of <Time at={overview.at / 1000} seconds />. </>}
        <span class="next-try">{wait === 0 ? 'Asking now …' : `Next attempt in ${wait} s.`}</span>{' '}
        <button type="button" onClick={() => void probe()}>Ask now</button>
      </p>
    </section>
  );
}

/** Asks for a token, and says why. */
function TokenPanel({ hadToken, detail, isAlone }: { hadToken: boolean; detail: string; isAlone: boolean }) {
  const Heading = isAlone ? 'h1' : 'h2';
  // The field keeps its own text: no part of the page has the token before it is used.
  const field = useRef<HTMLInputElement>(null);
  const [fault, setFault] = useState('');
  const submit = (event: Event): void => {
    event.preventDefault();
    const token = field.current?.value.trim() ?? '';
    if (!/^[\x21-\x7e]+$/.test(token)) {
      setFault('A token has letters, digits and signs, and no spaces. Copy it once more.');
      return;
    }
    if (field.current) field.current.value = '';
    setFault('');
    setToken(token);
  };
  return (
    <section class="token" aria-labelledby="token-title">
      <Heading id="token-title" tabIndex={-1}><Mark kind="warning" /> {hadToken ? 'The node refused the token' : 'This node requires a token'}</Heading>
      <p role="alert"><Prose text={fault || (hadToken ? sentence(detail) : 'Enter a token to see the cluster.')} /></p>
      <form onSubmit={submit}>
        <label class="field">
          <span>Token</span>
          <input type="password" autocomplete="off" autocapitalize="off" spellcheck={false} placeholder="shardd_…" ref={field} />
        </label>
        <button type="submit" class="primary">Use the token</button>
      </form>
      <p class="muted">
        An administrator makes one: <code>shardctl token create NAME --role read</code>. This tab keeps it until you close the tab.
      </p>
    </section>
  );
}

function ThemeSwitch() {
  useStore(theme);
  const now = choice();
  const signs = { auto: '◐', light: '☀', dark: '☾' };
  return (
    <button type="button" class="quiet theme" onClick={nextTheme} aria-label={`Colours: ${now}`} title={`Colours: ${now}`}>
      <span aria-hidden="true">{signs[now]}</span>
    </button>
  );
}

/** A page that cannot show an answer leaves the others usable. */
class Guard extends Component<{ children: ComponentChildren }, { fault?: string }> {
  override state: { fault?: string } = {};

  static override getDerivedStateFromError(error: unknown): { fault: string } {
    return { fault: error instanceof Error ? error.message : String(error) };
  }

  override render() {
    const { fault } = this.state;
    if (fault === undefined) return this.props.children;
    return (
      <div class="refused" role="alert">
        <h1 tabIndex={-1}>This page cannot show the answer of the node</h1>
        <p class="muted">{cut(visible(fault), 300)}</p>
        <button type="button" onClick={() => this.setState({}, () => location.reload())}>Load the console again</button>
      </div>
    );
  }
}
