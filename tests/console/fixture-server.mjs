// A server that answers as a node does, for a cluster of fixtures.mjs, and serves server/console/dist with the node's policy.
//
//     node tests/console/fixture-server.mjs trouble 8099      # open http://127.0.0.1:8099/
//     node tests/console/fixture-server.mjs trouble --dump DIR  # the answers as files

import { createServer } from 'node:http';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { Datasets, HOSTILE } from './datasets.mjs';
import { Cluster } from './fixtures.mjs';
import { simulation } from './simulations.mjs';
import { EARLY, Trainings } from './trainings.mjs';

export const DIST = fileURLToPath(new URL('../../server/console/dist/', import.meta.url));
export const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
export const TYPES = { html: 'text/html; charset=utf-8', js: 'text/javascript; charset=utf-8', css: 'text/css; charset=utf-8', txt: 'text/plain; charset=utf-8' };
const TITLES = { malformed: [400, 'malformed request'], 'too-many': [429, 'too many'], invalid: [422, 'invalid'], unauthorized: [401, 'unauthorized'], forbidden: [403, 'forbidden'], 'not-found': [404, 'not found'], unavailable: [503, 'unavailable'], 'method-not-allowed': [405, 'method not allowed'] };
const ROLES = ['read', 'write', 'admin'];

class Problem extends Error {
  constructor(kind, detail) {
    super(detail);
    this.kind = kind;
  }
}

export class FixtureServer {
  /** `tokens` are `{ secret: { role, datasets } }`; with none the node requires none. `prefix` is a path as a proxy has it. */
  constructor({ scenario = 'healthy', tokens, prefix = '' } = {}) {
    this.cluster = new Cluster(scenario);
    this.datasets = new Datasets(scenario);
    this.trainings = new Trainings(this.datasets, scenario === 'hostile' ? HOSTILE : undefined);
    this.tokens = tokens;
    this.prefix = prefix;
    this.requests = [];
    this.actions = [];
    this.followers = new Set();
    this.sockets = new Set();
    this.revision = 100;
    this.events = [];
    /** Files of the page that wait for a promise. */
    this.held = new Map();
  }

  async start(port = this.port ?? 0) {
    this.server = createServer((request, response) => void this.answer(request, response));
    // As a node: by itself Node.js would close a connection after five seconds, perhaps under the page's next request.
    this.server.keepAliveTimeout = 0;
    this.server.on('connection', (socket) => {
      this.sockets.add(socket);
      socket.on('close', () => this.sockets.delete(socket));
    });
    await new Promise((ready, failed) => this.server.once('error', failed).listen(port, '127.0.0.1', ready));
    this.port = this.server.address().port;
    return this;
  }

  get url() {
    return `http://127.0.0.1:${this.port}${this.prefix}/`;
  }

  /** Ends as a killed process does: without a word. */
  async stop() {
    this.followers.clear();
    const closed = new Promise((done) => this.server.close(done));
    for (const socket of this.sockets) socket.destroy();
    await closed;
  }

  /** Announces a change to all who follow. */
  emit(kind, name, removed = false) {
    this.revision += 1;
    const event = { id: this.revision, text: `event: ${kind}\ndata: ${JSON.stringify({ kind, name, removed, revision: this.revision })}\nid: ${this.revision}\n\n` };
    this.events.push(event);
    for (const follower of this.followers) follower.write(event.text);
  }

  /** Sends `reset` or `lagged`; the second ends the stream. */
  interrupt(event) {
    for (const follower of this.followers) {
      follower.write(`event: ${event}\ndata: list the entries, then follow the changes\n\n`);
      if (event !== 'lagged') continue;
      follower.end();
      this.followers.delete(follower);
    }
  }

  async answer(request, response) {
    const url = new URL(request.url, 'http://node');
    const seen = { method: request.method, path: url.pathname + url.search, headers: request.headers, bytes: 0 };
    this.requests.push(seen);
    const send = (status, headers, body) => {
      const bytes = Buffer.from(body);
      seen.bytes = bytes.length;
      seen.status = status;
      response.writeHead(status, { 'x-request-id': '5d0a1f3c9b7e2468', ...headers, 'content-length': bytes.length });
      response.end(bytes);
    };
    try {
      if (!url.pathname.startsWith(`${this.prefix}/`)) throw new Problem('not-found', `there is nothing at ${url.pathname}`);
      const path = url.pathname.slice(this.prefix.length);
      if (this.delay) await new Promise((over) => setTimeout(over, this.delay));
      if (!path.startsWith('/v1/')) return await this.file(path, send);
      if (this.busy?.(path)) throw new Problem('too-many', 'as many lookups as may be are under way');
      const role = this.check(request, path);
      if (path === '/v1/events') return this.follow(request, response, role);
      const chunks = [];
      for await (const chunk of request) chunks.push(chunk);
      const body = chunks.length > 0 ? JSON.parse(Buffer.concat(chunks).toString()) : undefined;
      const { status = 200, json, bytes, headers = {} } = this.route(request.method, path, url.searchParams, body, role);
      if (bytes !== undefined) return send(status, headers, bytes);
      send(status, json === undefined ? headers : { 'content-type': 'application/json', ...headers }, json === undefined ? '' : JSON.stringify(json));
    } catch (error) {
      if (error.code === 'ECONNRESET') return;
      const [status, title] = TITLES[error.kind] ?? [500, 'a fault of the fixture'];
      const document = { type: `urn:shardd:problem:${error.kind}`, title, status, detail: error.message, instance: 'urn:shardd:request:5d0a1f3c9b7e2468' };
      if (!error.kind) console.error(error);
      send(status, { 'content-type': 'application/problem+json' }, JSON.stringify(document));
    }
  }

  async file(path, send) {
    const name = path === '/' ? 'index.html' : path.slice(1);
    await this.held.get(name);
    if (!/^[\w.]+$/.test(name)) throw new Problem('not-found', `there is nothing at ${path}`);
    const bytes = await readFile(join(DIST, name)).catch(() => {
      throw new Problem('not-found', `there is nothing at ${path}`);
    });
    send(200, { 'content-type': TYPES[name.split('.').at(-1)], 'content-security-policy': POLICY, 'x-content-type-options': 'nosniff', 'referrer-policy': 'no-referrer', 'cache-control': 'no-cache' }, bytes);
  }

  /** The rights of the request. */
  check(request, path) {
    if (!this.tokens) return { role: 'admin', datasets: null };
    if (['/v1/health', '/v1/ready', '/v1/authority'].includes(path)) return undefined;
    const shown = /^bearer (.*)$/i.exec(request.headers.authorization ?? '')?.[1];
    if (shown === undefined) throw new Problem('unauthorized', 'this needs a token: `--token-file FILE` or SHARDD_TOKEN_FILE, over HTTP `authorization: Bearer shardd_...`');
    const grant = this.tokens[shown];
    if (!grant) throw new Problem('unauthorized', 'the token is not known: it was revoked, or is for another cluster');
    if (grant.expired) throw new Problem('unauthorized', `token ${shown.slice(0, 14)} has expired`);
    const need = request.method === 'GET' ? 'read' : 'admin';
    if (ROLES.indexOf(grant.role) < ROLES.indexOf(need)) throw new Problem('forbidden', `this needs a token of role ${need}; this one has role ${grant.role}`);
    return grant;
  }

  follow(request, response, grant) {
    if (grant.datasets) throw new Problem('forbidden', 'the token is for some datasets, this is about all');
    response.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-cache' });
    response.write(': still here\n\n');
    const after = Number(request.headers['last-event-id']);
    if (Number.isFinite(after)) for (const { id, text } of this.events) if (id > after) response.write(text);
    this.followers.add(response);
    response.on('close', () => this.followers.delete(response));
  }

  route(method, path, query, body, grant) {
    const parts = path.slice('/v1/'.length).split('/').map(decodeURIComponent);
    const [first, id, last] = parts;
    const { cluster, datasets } = this;
    const known = (names) => {
      for (const name of query.keys()) if (!names.includes(name)) throw new Problem('malformed', `unknown parameter ${name}`);
    };
    const number = (name, usual, most) => {
      const value = query.get(name) ?? usual;
      if (!/^\d+$/.test(value) || Number(value) < 1 || Number(value) > most) throw new Problem('malformed', `${value} is not a number from 1 to ${most}`);
      return Number(value);
    };
    const choice = (name, values) => {
      const value = query.get(name) ?? values[0];
      if (!values.includes(value)) throw new Problem('malformed', `${name}: ${value} is not one of ${values.join(', ')}`);
      return value;
    };
    const found = (value, what) => {
      if (value === undefined) throw new Problem('not-found', `there is no ${what}`);
      return { json: value };
    };
    const all = () => {
      if (grant?.datasets) throw new Problem('forbidden', 'the token is for some datasets, this is about all');
    };
    const page = (list, key, more = []) => {
      known(['limit', 'page', 'details', ...more]);
      const limit = number('limit', 1000, 10_000);
      const after = query.has('page') ? Buffer.from(query.get('page'), 'hex').toString() : undefined;
      const rest = list.filter((one) => after === undefined || key(one) > after);
      const items = rest.slice(0, limit);
      const next = rest.length > limit ? Buffer.from(key(items.at(-1))).toString('hex') : undefined;
      return { json: items, headers: next === undefined ? {} : { link: `<${path}?limit=${limit}&page=${next}>; rel="next"` } };
    };
    const ORDERS = ['reads', 'bytes', 'misses', 'latency'];

    if (method === 'GET') {
      if (first === 'versions' && parts.length === 5 && parts[2] === 'samples') {
        const of = datasets.of(id);
        found(of?.columns.find((column) => column.name === parts[4]), `column ${parts[4]}`);
        const [type, bytes] = of.content(Number(parts[3]), parts[4]);
        return { bytes, headers: { 'content-type': type, 'x-content-type-options': 'nosniff' } };
      }
      if (first === 'runs' && parts.length >= 5 && parts[2] === 'records') {
        const record = this.trainings.find(id, parts[3]);
        found(record, `record ${parts[3]} of run ${id}`);
        if (parts.length === 5 && parts[4] === 'summary') return found(this.trainings.summary(id, record), 'version of the training');
        if (parts.length === 5 && parts[4] === 'steps') return { json: this.trainings.course(id, record, number('points', 240, 2000)) };
        found(Number(parts[5]) < record.end ? record : undefined, `step ${parts[5]} in the record`);
        if (parts[6] === 'losses') {
          const losses = (record.losses.last.includes(Number(parts[5])) || (record.losses.count > 1 && Number(parts[5]) === EARLY)) ? this.trainings.losses(record, Number(parts[5]), number('limit', 100, 10_000)) : undefined;
          return found(losses, `file of the losses of step ${parts[5]}`);
        }
        return { json: this.trainings.step(id, record, Number(parts[5])) };
      }
      switch (parts.length === 1 ? first : `${first}/${parts.length > 2 ? `*/${last}` : '*'}`) {
        case 'health':
          return { json: { status: 'ok', id: cluster.nodes[0].record.id, quic: '127.0.0.1:7701', release: '0.1.0' } };
        case 'access':
          return { json: { required: this.tokens !== undefined, role: this.tokens ? grant.role : null, datasets: grant?.datasets ?? null } };
        case 'overview':
          all();
          known([]);
          return { json: cluster.overview() };
        case 'cluster/*':
          all();
          known(['order', 'search', 'offset', 'limit']);
          return { json: cluster.rows({ order: choice('order', ['name', 'state', 'cache', 'disk', 'origin', 'processors']), search: query.get('search') ?? '', offset: Number(query.get('offset') ?? 0), limit: number('limit', 100, 1000) }) };
        case 'nodes/*/status':
          known([]);
          if (cluster.find(id)?.unanswered) throw new Problem('unavailable', cluster.find(id).unanswered);
          return found(cluster.status(id), `live node ${id}`);
        case 'nodes/*/series':
          known(['names', 'points']);
          if (cluster.find(id)?.unanswered) throw new Problem('unavailable', cluster.find(id).unanswered);
          return found(cluster.series(id, (query.get('names') ?? '').split(',').filter(Boolean), number('points', 120, 720)), `live node ${id}`);
        case 'nodes/*/hot':
          known(['by', 'limit']);
          found(cluster.find(id), `live node ${id}`);
          return { json: cluster.hot(choice('by', ORDERS), number('limit', 100, 1000), id) };
        case 'hot':
          all();
          known(['by', 'limit']);
          return { json: cluster.hot(choice('by', ORDERS), number('limit', 100, 1000)) };
        case 'shards/*/copies':
          all();
          known([]);
          return found(cluster.copies(id), `shard ${id}`);
        case 'datasets':
          return page(datasets.all.map((of) => datasets.info(of)), (of) => of.name);
        case 'datasets/*': {
          const of = datasets.named(id);
          return found(of && datasets.info(of), `dataset ${id}`);
        }
        case 'datasets/*/log':
        case 'datasets/*/tags': {
          const of = datasets.all.find((one) => one.name === id);
          found(of, `dataset ${id}`);
          // The key of a page orders commits from the newest to the oldest.
          if (last === 'log') return page([...of.commits].reverse(), (commit) => String(10_000 - commit.number));
          return page(datasets.tags(of), (tag) => tag.tag);
        }
        case 'versions/*/summary':
          known([]);
          return found(datasets.summary(id), `version ${id}`);
        case 'versions/*/diff':
          known(['from', 'stats']);
          return found(datasets.diff(id, query.get('from'), query.get('stats') === 'true'), `version ${query.get('from')}`);
        case 'versions/*/shards':
          known(['offset', 'limit']);
          found(datasets.of(id), `version ${id}`);
          return { json: datasets.shards(id, Number(query.get('offset') ?? 0), number('limit', 50, 1000)) };
        case 'versions/*/simulation': {
          known(['q', 'partitions', 'grain_rows', 'nodes', 'epochs', 'link', 'step_ms', 'selection', 'placement', 'matrix']);
          found(datasets.of(id), `version ${id}`);
          if (number('nodes', 4, 4096) > number('partitions', 16, 65_536)) throw new Problem('invalid', `${query.get('nodes')} nodes cannot share ${query.get('partitions') ?? 16} partitions: make the plan with ${query.get('nodes')} partitions or more`);
          if (query.get('q')?.split(',').some((share) => !(Number(share) <= 1))) throw new Problem('invalid', `q: ${query.get('q')} is outside 0 to 1`);
          return { json: simulation(datasets.of(id), query) };
        }
        case 'versions/*/samples': {
          known(query.has('numbers') ? ['numbers'] : ['from', 'limit']);
          const of = datasets.of(id);
          found(of, `version ${id}`);
          const numbers = query.has('numbers') ? query.get('numbers').split(',') : Array.from({ length: number('limit', 12, 100) }, (_, at) => Number(query.get('from') ?? 0) + at).filter((at) => at < of.samples);
          if (numbers.length > 100 || numbers.some((at) => !/^\d+$/.test(at) || Number(at) >= of.samples)) throw new Problem('malformed', `numbers: there is no sample ${numbers}`);
          return { json: datasets.samples(id, numbers.map(Number)) };
        }
        case 'plans':
          return page(datasets.plans.filter((plan) => !query.has('version') || plan.version === query.get('version')), (plan) => String(plan.created) + plan.id, ['version']);
        case 'plans/*/at': {
          known(['epoch', 'position', 'global_batch_size', 'rank', 'world', 'virtual_ranks']);
          const plan = datasets.plans.find((one) => one.id === id);
          found(plan, `plan ${id}`);
          const [epoch, position, rank, virtual_ranks] = ['epoch', 'position', 'rank', 'virtual_ranks'].map((name) => (query.has(name) ? Number(query.get(name)) : undefined));
          const { samples } = datasets.of(plan.version);
          if ((position ?? 0) >= samples) throw new Problem('invalid', `position ${position} is outside the epoch, which has ${samples} samples`);
          return { json: datasets.at(plan, { epoch: epoch ?? 0, position: position ?? 0, size: number('global_batch_size', 1, 10_000), rank, world: number('world', 1, 1000), virtual_ranks }) };
        }
        case 'plans/*/labels': {
          known(['epoch', 'first', 'partitions', 'labels']);
          const plan = datasets.plans.find((one) => one.id === id);
          found(plan, `plan ${id}`);
          const [epoch, first] = ['epoch', 'first'].map((name) => Number(query.get(name) ?? 0));
          if (epoch > 1000) throw new Problem('invalid', `epoch: it takes too long to follow grains of 64 partitions to epoch ${epoch}; ask for fewer partitions, or an earlier epoch`);
          return { json: datasets.labels(plan, epoch, first, number('partitions', 64, 256), number('labels', 16, 64)) };
        }
        case 'plans/*/where': {
          known(['epoch', 'sample']);
          const plan = datasets.plans.find((one) => one.id === id);
          found(plan, `plan ${id}`);
          return { json: datasets.where(plan, Number(query.get('epoch') ?? 0), Number(query.get('sample'))) };
        }
        case 'runs':
          return page([...cluster.listed].sort((one, other) => (one.id < other.id ? -1 : 1)), (run) => run.id);
        case 'runs/*':
          return found(cluster.view(id), `run ${id}`);
        case 'runs/*/traffic':
          return found(cluster.traffic(id), `placement of run ${id} yet`);
        case 'runs/*/trace':
          known(['limit']);
          return found(cluster.trace(id, number('limit', 16, 64)), `placement of run ${id} yet`);
        case 'runs/*/records':
          return { json: this.trainings.records(id) };
        case 'runs/*/placement':
          return found(cluster.placement(id), `placement of run ${id} yet`);
        case 'runs/*/audit':
          found(cluster.view(id), `run ${id}`);
          return page(cluster.audit(id), ({ epoch, world, rank }) => [epoch, world, rank].map((value) => String(value).padStart(10, '0')).join('/'));
        default:
          throw new Problem('not-found', `there is nothing at ${path}`);
      }
    }
    this.actions.push({ method, path, body });
    if (first === 'nodes' && last === 'drain') {
      const of = cluster.find(id);
      found(of, `node ${id}`);
      of.draining = method === 'PUT' ? 'asked' : undefined;
      this.emit('node', id);
      return { status: 204 };
    }
    if (first === 'exchange' && method === 'PUT') {
      const of = cluster.nodes.filter((one) => body.node === undefined || one.record.id === body.node);
      for (const one of of) Object.assign(one, body.paused === undefined ? {} : { paused: body.paused }, body.rate === undefined ? {} : { rate: body.rate === 'default' ? 'auto' : body.rate });
      return { json: { all: {}, nodes: {} } };
    }
    if (first === 'certificates' && method === 'DELETE') {
      found(cluster.find(id), `certificate of node ${id}`);
      cluster.nodes = cluster.nodes.filter((one) => one.record.id !== id);
      cluster.findings = cluster.findings.filter((finding) => finding.node !== id);
      this.emit('node', id, true);
      return { status: 204 };
    }
    throw new Problem('method-not-allowed', `${method} is not a method of ${path}`);
  }
}

/** The questions of the console, for `--dump`. */
function questions(cluster) {
  const node = cluster.nodes[0].record.id;
  const run = (cluster.runs[0] ?? cluster.listed[0]).id;
  const part = encodeURIComponent;
  const { version } = new Datasets(cluster.scenario).all[0];
  return {
    datasets: 'datasets?limit=3',
    summary: `versions/${version}/summary`,
    'version-shards': `versions/${version}/shards?limit=2`,
    samples: `versions/${version}/samples?limit=2`,
    overview: 'overview',
    'node-rows': 'cluster/nodes?order=disk&limit=100',
    'node-status': `nodes/${part(node)}/status`,
    'node-series': `nodes/${part(node)}/series?points=120`,
    'node-hot': `nodes/${part(node)}/hot?by=reads&limit=50`,
    hot: 'hot?by=latency&limit=50',
    runs: 'runs',
    run: `runs/${part(run)}`,
    placement: `runs/${part(run)}/placement`,
    audit: `runs/${part(run)}/audit`,
    access: 'access',
  };
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  const [scenario = 'trouble', more = '8099', folder] = process.argv.slice(2);
  const server = new FixtureServer({ scenario });
  if (more === '--dump') {
    await mkdir(folder, { recursive: true });
    for (const [name, path] of Object.entries(questions(server.cluster))) {
      const url = new URL(`/v1/${path}`, 'http://node');
      try {
        const { json } = server.route('GET', url.pathname, url.searchParams, undefined, { role: 'admin', datasets: null });
        await writeFile(join(folder, `${name}.json`), `${JSON.stringify(json, undefined, 1)}\n`);
      } catch (error) {
        if (error.kind !== 'not-found') throw error;
      }
    }
  } else {
    await server.start(Number(more));
    console.log(`${scenario}: ${server.url}`);
  }
}
