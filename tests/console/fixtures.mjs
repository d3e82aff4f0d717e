// Clusters that do not exist, as the answers of a node describe them. The forms are those of client/api: lists are sorted and cut, and
// runs are put together, as client/api/src/overview does it.

import { createHash } from 'node:crypto';

const GIB = 2 ** 30;
const MIB = 2 ** 20;
const STAGES = ['network', 'disk', 'decode', 'transform', 'python'];
const EXPOSED = 0.05;
const MOST_RUNS = 50;
const MOST_FINDINGS = 100;

const digest = (text) => createHash('sha256').update(text).digest('hex');
/** A number from 0 to 1 that is always the same for the same text. */
const chance = (text) => Number.parseInt(digest(text).slice(0, 8), 16) / 2 ** 32;
/** A slow wave and a little noise around 1, by time in seconds. */
const wave = (seed, at, size = 0.04) => 1 + size * Math.sin(at / 170 + 6 * chance(seed)) + size * 0.8 * (chance(`${seed}/${Math.floor(at / 5)}`) - 0.5);

const now = () => Date.now() / 1000;

/** The settings of a node: those of a healthy one, but for the given ones. */
function node(id, more = {}) {
  const began = Math.floor(now()) - 3 * 86_400 - 7000;
  return {
    record: { id, http: `http://${id}:7700`, quic: '127.0.0.1:7701', cache_bytes: 64 * GIB, started_at: began },
    draining: undefined,
    hosted: 12,
    copying: 0,
    issues: [],
    unanswered: undefined,
    lost: false,
    last_seen: undefined,
    cache_used: 41 * GIB + 3 * GIB * chance(id),
    cache_limit: 64 * GIB,
    cache_peak: 52 * GIB,
    disks: [{ directory: 'cache', path: '/var/lib/shardd/cache', size_bytes: 200 * GIB, free_bytes: Math.round((112 + 9 * chance(`${id} disk`)) * GIB) }],
    origin_bytes: Math.round((36 + 3 * chance(`${id} origin`)) * GIB),
    corrupt: 0,
    processors: 1.4 + chance(`${id} cpu`),
    resident: Math.round((310 + 40 * chance(`${id} rss`)) * MIB),
    release: '0.1.0',
    certificate_ends: Math.floor(now()) + 61 * 86_400,
    read_micros: 900,
    sync_micros: 4200,
    rate: 'auto',
    paused: false,
    ranks: [],
    exchange: [],
    metadata: undefined,
    peers: [],
    ...more,
  };
}

/** A rank that reads at a node. */
function rank(run, number, waits = {}, more = {}) {
  return { run, rank: number, waits, samples: 1560, ...more };
}

function epochs(run, count, more = {}) {
  return Array.from({ length: count }, (_, epoch) => ({
    run,
    epoch,
    expected_grains: 4120,
    received_grains: 4120,
    received_bytes: 2_160_000_000 + 7_000_000 * epoch,
    sent_grains: 4098,
    sent_bytes: 2_150_000_000 + 6_000_000 * epoch,
    unsent_grains: 0,
    sending_micros: 231_000_000 + 900_000 * epoch,
    waited_micros: 2_300_000,
    ...more,
  }));
}

function peersOf(id, all) {
  return all.filter((other) => other !== id).map((other) => ({ node: other, answer_micros: Math.round(1800 + 900 * chance(id + other)), silences: 0, wrong_grains: 0 }));
}

function runInfo(id, state, more = {}) {
  const at = Math.floor(now());
  return { id, state, dataset: 'imagenet21k', plan: digest(`plan ${id}`), version: digest('version'), virtual_ranks: 16, began: at - 9200, seen: at - 20, ...more };
}

const RUN = 'vit-b16';

const old = (at) => [
  runInfo('warm-up', 'finished', { began: at - 86_400 * 2, seen: at - 86_400 * 2 + 5400 }),
  runInfo('vit-b16-lr3', 'failed', { began: at - 86_400, seen: at - 80_000 }),
  runInfo('tinyshakespeare', 'interrupted', { dataset: 'tinyshakespeare', began: at - 40_000, seen: at - 20_000, virtual_ranks: 4, world: 2 }),
];

function four(change = {}, waits = () => ({ disk: 0.006, network: 0.004 })) {
  const names = ['n1', 'n2', 'n3', 'n4'];
  return names.map((id, at) =>
    node(id, {
      ranks: [rank(RUN, 2 * at, waits(2 * at)), rank(RUN, 2 * at + 1, waits(2 * at + 1))],
      exchange: epochs(RUN, 5),
      peers: peersOf(id, names),
      ...(at === 0 ? { metadata: { epoch: 1, copied_at: Math.floor(now()) - 3, copy_bytes: 48_211, is_behind: false, lag_s: 0 } } : {}),
      ...change[id],
    }),
  );
}

const runOf = (id, more = {}) => ({ id, epoch: 5, epoch_samples: 14_197_122, position: 6_720_000, began: Math.floor(now()) - 9200, ...more });

export const SCENARIOS = {
  /** All is well. */
  healthy() {
    return { nodes: four(), runs: [runOf(RUN)], listed: [runInfo(RUN, 'running', { world: 8 }), ...old(Math.floor(now()))], findings: [] };
  },

  /** A straggler with a slow disk, a disk that corrupts data, a disk that is nearly full. */
  trouble() {
    const at = Math.floor(now());
    const issue = { node: 'n2', what: 'slow_reads', by: 'n2', measured: 38_400, others: 1100 };
    const nodes = four(
      {
        n2: { read_micros: 38_400, issues: [issue] },
        n3: { corrupt: 12 },
        n4: { disks: [{ directory: 'cache', path: '/var/lib/shardd/cache', size_bytes: 100 * GIB, free_bytes: Math.round(1.9 * GIB), full: { in_s: 2900, earliest_s: 2400, latest_s: 3600 } }] },
      },
      (number) => (number === 3 ? { disk: 0.39, decode: 0.015, network: 0.005 } : { disk: 0.012, network: 0.006 }),
    );
    nodes[1].ranks[1].since = at - 1260;
    for (const one of nodes) for (const reader of one.ranks) reader.samples = 1090;
    const findings = [
      {
        severity: 'critical', kind: 'corrupt_grains', title: 'the disk of node n3 corrupts data',
        cause: '12 grains in its cache did not match the manifest since it started. Each was dropped and fetched again, so no rank has read one.',
        remedy: "Replace the disk. Drain the node first: `shardctl drain n3`. `dmesg` and `smartctl` show the disk's errors.", node: 'n3',
      },
      {
        severity: 'critical', kind: 'disk_fills_up', title: 'the cache disk of node n4 is nearly full', cause: '1.9 GiB of 100.0 GiB are free on /var/lib/shardd/cache.',
        remedy: 'Free space on the disk: other files take most of it. The cache has 42.1 GiB of the 98.1 GiB in use.', node: 'n4',
      },
      {
        severity: 'warning', kind: 'straggler', title: `rank 3 of ${RUN} slows every step: it waits for its disk`,
        cause: 'Rank 3 (node n2) waits for data 41 % of its time, several times as long as the other ranks, which wait for it: files of its machine are read too slowly.',
        remedy: "Use a faster disk, or more memory for the page cache. Look at the node's disk latency below.", node: 'n2', run: RUN, rank: 3, since: at - 1260,
      },
      {
        severity: 'warning', kind: 'slow_disk', title: 'the disk of node n2 is slow to read',
        cause: 'Node n2 reports: its disk takes 38.4 ms to read a grain, 34 times the median of the others (1.1 ms).',
        remedy: 'Look at what else uses the disk (`iostat -x 1`), or drain the node: `shardctl drain n2`.', node: 'n2',
      },
    ];
    return { nodes, runs: [runOf(RUN, { rate: [7100, 10_050] })], listed: [runInfo(RUN, 'running', { world: 8 }), ...old(at)], findings };
  },

  /** No rank reads. */
  idle() {
    const nodes = four().map((one) => ({ ...one, ranks: [] }));
    return { nodes, runs: [], listed: old(Math.floor(now())), findings: [] };
  },

  /** A node that is lost, one that drains, and one without an answer. */
  lost() {
    const nodes = four({
      n2: { draining: 'asked', hosted: 3, copying: 2, ranks: [] },
      n3: { unanswered: 'node n3 did not answer within 2 s', ranks: [] },
      n4: { lost: true, last_seen: Math.floor(now()) - 340, ranks: [] },
    });
    const findings = [
      {
        severity: 'critical', kind: 'node_lost', title: 'node n4 is lost',
        cause: 'It is a member of the cluster and does not answer at http://n4:7700. Other nodes fetch its grains from the store.',
        remedy: 'Start it again, or remove it with `shardctl certs revoke n4`.', node: 'n4', since: Math.floor(now()) - 340,
      },
      {
        severity: 'warning', kind: 'node_unanswered', title: 'node n3 did not answer', cause: 'It is live, and did not say how it is: node n3 did not answer within 2 s',
        remedy: 'Look at its log and at the network between the nodes. An older release does not know the question.', node: 'n3',
      },
    ];
    return { nodes, runs: [runOf(RUN)], listed: [runInfo(RUN, 'running', { world: 2 })], findings };
  },

  /** A thousand nodes, 64 of them with ranks of three runs. */
  large() {
    const at = Math.floor(now());
    const runs = ['llm-7b', 'vit-l', 'whisper-ft'];
    const nodes = Array.from({ length: 1000 }, (_, number) => {
      const id = `node-${String(number).padStart(4, '0')}`;
      const luck = chance(id);
      const run = number < 64 ? runs[number % 3] : undefined;
      return node(id, {
        cache_used: Math.round((20 + 44 * luck) * GIB),
        disks: [{ directory: 'cache', path: '/data/cache', size_bytes: 200 * GIB, free_bytes: Math.round((4 + 140 * chance(`${id} d`)) * GIB) }],
        ranks: run ? Array.from({ length: 4 }, (_, one) => rank(run, Math.floor(number / 3) * 4 + one, { network: 0.02 + 0.04 * luck, decode: 0.01 })) : [],
        draining: luck > 0.99 ? 'asked' : undefined,
        lost: number >= 996,
        ...(number >= 996 ? { last_seen: at - 900 } : {}),
        unanswered: number >= 990 && number < 996 ? 'timed out' : undefined,
        issues: number % 250 === 7 ? [{ node: id, what: 'slow_answers', by: 'node-0001', measured: 310_000, others: 21_000 }] : [],
      });
    });
    const findings = [
      ...Array.from({ length: 4 }, (_, one) => {
        const id = `node-0${996 + one}`;
        return {
          severity: 'critical', kind: 'node_lost', title: `node ${id} is lost`, cause: `It is a member of the cluster and does not answer at http://${id}:7700. Other nodes fetch its grains from the store.`,
          remedy: `Start it again, or remove it with \`shardctl certs revoke ${id}\`.`, node: id, since: at - 900,
        };
      }),
      ...Array.from({ length: 40 }, (_, one) => ({
        severity: 'warning', kind: 'certificate_expiry', title: `the certificate of node node-${String(one).padStart(4, '0')} ends in 9 days`,
        cause: 'Nodes renew their certificates by themselves. This one could not: other nodes will refuse its connections.',
        remedy: `Look for the reason in its log, then renew it: \`shardctl certs rotate node-${String(one).padStart(4, '0')}\`.`, node: `node-${String(one).padStart(4, '0')}`,
      })),
    ];
    const listed = [
      ...runs.map((id) => runInfo(id, 'running', { world: 84 })),
      ...Array.from({ length: 240 }, (_, one) => runInfo(`sweep-${String(one).padStart(3, '0')}`, one % 9 === 0 ? 'failed' : 'finished', { began: at - 86_400 * (1 + one), seen: at - 86_400 * one })),
    ];
    return { nodes, runs: runs.map((id, one) => runOf(id, { epoch: one, epoch_samples: 40_000_000, position: 9_000_000 * (one + 1) })), listed, findings };
  },

  /** Names and texts that try to be more than text. */
  hostile() {
    const script = '<script>window.__owned = 1</script><img src=x onerror="window.__owned = 1">';
    const bidi = 'safe\u202egnp.exe\u2066 \u0000\u0007\u001b[31m\r\n\u007f\u0085\ufeff\u200b';
    const long = 'x'.repeat(120_000);
    const id = '"><svg onload=window.__owned=1> ../../v1/%2e%2e?#';
    const run = `javascript:window.__owned=1//${bidi}`;
    const nodes = [
      node(id, {
        ranks: [rank(run, 0, { disk: 0.5 })],
        disks: [{ directory: 'cache', path: `/data/${script}${bidi}`, size_bytes: 100 * GIB, free_bytes: 50 * GIB }],
        release: `0.1.0${script}`,
        exchange: epochs(run, 2),
        peers: [{ node: script, answer_micros: 1500, silences: 0, wrong_grains: 3 }],
        rate: script,
        metadata: { epoch: 1, trouble: `${script}${bidi}`, copy_bytes: 10, is_behind: true, lag_s: 900, copy_trouble: long },
        issues: [{ node: id, what: script, by: script, measured: 1, others: 1 }],
        issue_lines: [`${script}${bidi}`, long],
      }),
      node('__proto__', { ranks: [] }),
      node('constructor', { ranks: [] }),
    ];
    const findings = [
      { severity: 'critical', kind: script, title: `${script}${bidi}`, cause: `${bidi}${script}${long}`, remedy: `Do \`rm -rf ${script}\` and \`never this`, node: id, run, rank: 0, since: 1e20 },
      { severity: 'warning', kind: '__proto__', title: long, cause: script, remedy: '[click](javascript:alert(1))', node: '__proto__' },
    ];
    return {
      nodes,
      runs: [runOf(run)],
      listed: [runInfo(run, 'running', { world: 1, dataset: `${script}${bidi}` }), runInfo(long.slice(0, 5000), script, { dataset: long })],
      findings,
      hottest: [{ shard: script, reads: 10, misses: 4, bytes: 1e9, nodes: [id, script] }],
    };
  },
};

/** A cluster of a scenario, with the answers to all questions about it. */
export class Cluster {
  constructor(scenario) {
    const make = SCENARIOS[scenario];
    if (!make) throw new Error(`there is no scenario ${scenario}: ${Object.keys(SCENARIOS).join(', ')}`);
    Object.assign(this, make());
    this.scenario = scenario;
    this.began = now();
  }

  find(id) {
    return this.nodes.find((one) => one.record.id === id);
  }

  live() {
    return this.nodes.filter((one) => !one.lost);
  }

  /** Where a run is now, and how fast. */
  progress(run) {
    const samples = this.ranksOf(run.id).reduce((sum, { reader }) => sum + reader.samples, 0);
    const position = Math.min(run.epoch_samples, Math.floor(run.position + samples * (now() - this.began)));
    const [least, most] = run.rate ?? [samples * 0.97, samples * 1.03];
    return { position, samples, least, most };
  }

  ranksOf(run) {
    return this.live().filter((one) => !one.unanswered).flatMap((one) => one.ranks.filter((reader) => reader.run === run).map((reader) => ({ node: one, reader })));
  }

  reader({ run, rank: number, waits, samples, since }) {
    const of = this.runs.find((one) => one.id === run);
    const at = now();
    const shares = Object.fromEntries(STAGES.map((stage) => [stage, round((waits[stage] ?? 0) * (stage === 'disk' || waits[stage] > 0.1 ? 1 : wave(`${run}${number}${stage}`, at, 0.2)))]));
    const exposed = Object.values(shares).reduce((sum, share) => sum + share, 0);
    const { position, least, most } = this.progress(of);
    const steps = Math.floor(at - of.began) * 6;
    return {
      run,
      rank: number,
      epoch: of.epoch,
      transport: 'files',
      position,
      epoch_samples: of.epoch_samples,
      loop_time: { steps, samples: steps * 256, compute_ms: 1000, waits: Object.fromEntries(STAGES.map((stage) => [`${stage}_ms`, Math.round(1000 * shares[stage])])) },
      recent: { over_s: 60, samples_per_second: round(samples * wave(`${run} samples`, at)), steps_per_second: round(samples / 256), compute_share: round(1 - exposed), wait_shares: shares },
      run_rate: { least, most },
      ...(exposed > EXPOSED ? { exposed_since: since ?? Math.floor(at) - 600 } : {}),
    };
  }

  status(id) {
    const of = this.find(id);
    if (!of || of.lost) return undefined;
    const at = now();
    return {
      node: id,
      cache_used_bytes: Math.round(of.cache_used),
      cache_limit_bytes: of.cache_limit,
      cache_grains: Math.round(of.cache_used / 524_288),
      cache_peak_bytes: of.cache_peak,
      origin_bytes: of.origin_bytes,
      origin_requests: Math.round(of.origin_bytes / (8 * MIB)),
      origin_reread: 0,
      measured: { disk: { read_micros: of.read_micros, sync_micros: of.sync_micros }, peers: of.peers },
      health_issues: of.issues.filter((issue) => issue.by === id),
      exchange_now: { rate: of.rate, paused: of.paused, waiting: of.ranks.slice(0, 1).map(({ run }) => ({ run, bytes: Math.round(310 * MIB * wave(id, at, 0.3)) })) },
      readers: of.ranks.map((reader) => this.reader(reader)),
      ...(of.metadata ? { metadata: of.metadata } : {}),
      machine: {
        release: of.release,
        start: of.record.started_at,
        processors: round(of.processors * wave(`${id} cpu`, at)),
        resident_bytes: of.resident,
        disks: of.disks,
        pressure: { cpu: 0.06, io: of.read_micros > 10_000 ? 0.44 : 0.02, memory: 0 },
        certificate_ends: of.certificate_ends,
      },
      fill_grains: 81_200,
      fill_bytes: Math.round(of.origin_bytes * 0.98),
      forwarded_grains: 60_900,
      misses_from_peers: 1203,
      misses_from_origin: 37,
      miss_bytes_from_peers: 1203 * 524_288,
      miss_bytes_from_origin: 37 * 524_288,
      corrupt_on_disk: of.corrupt,
      corrupt_from_peers: 0,
      served_grains: 1187,
      served_bytes: 1187 * 524_288,
      stalled_s: 2.4,
      exchange_s: 1150.2,
      exchange: of.exchange,
    };
  }

  overview() {
    const live = this.live();
    const at = Math.floor(now());
    const statuses = live.filter((one) => !one.unanswered).map((one) => this.status(one.record.id));
    const sum = (of) => statuses.reduce((total, status) => total + of(status), 0);
    return {
      node: this.nodes[0].record.id,
      release: this.nodes[0].release,
      at,
      nodes: {
        live: live.length,
        lost: this.nodes.length - live.length,
        draining: live.filter((one) => one.draining).length,
        unhealthy: live.filter((one) => one.issues.length > 0).length,
        unanswered: live.filter((one) => one.unanswered).length,
      },
      runs: this.runs.map((run) => this.run(run)).sort((one, other) => (other.waits?.exposed_share ?? 0) - (one.waits?.exposed_share ?? 0)).slice(0, MOST_RUNS),
      more_runs: Math.max(0, this.runs.length - MOST_RUNS),
      findings: this.findings.slice(0, MOST_FINDINGS),
      more_findings: Math.max(0, this.findings.length - MOST_FINDINGS),
      totals: {
        cache_used_bytes: sum((status) => status.cache_used_bytes),
        cache_limit_bytes: sum((status) => status.cache_limit_bytes),
        origin_bytes: sum((status) => status.origin_bytes),
        exchange_bytes: sum((status) => status.exchange.reduce((total, one) => total + one.sent_bytes, 0)),
        corrupt_grains: sum((status) => status.corrupt_on_disk + status.corrupt_from_peers),
      },
    };
  }

  run(run) {
    const ranks = this.ranksOf(run.id).map(({ node: of, reader }) => {
      const { recent, exposed_since } = this.reader(reader);
      return { since: exposed_since, rank: reader.rank, node: of.record.id, samples_per_second: recent.samples_per_second, compute_share: recent.compute_share, wait_shares: recent.wait_shares };
    });
    const exposed = (one) => Math.min(1, Object.values(one.wait_shares).reduce((total, share) => total + share, 0));
    ranks.sort((one, other) => exposed(other) - exposed(one));
    const [first, ...others] = ranks;
    const { position, samples, least, most } = this.progress(run);
    const left = run.epoch_samples - position;
    const median = others[Math.floor(others.length / 2)];
    const stage = first && STAGES.filter((one) => first.wait_shares[one] > 0).sort((one, other) => first.wait_shares[other] - first.wait_shares[one])[0];
    const waiting = this.live().reduce((total, one) => total + (one.ranks.some((reader) => reader.run === run.id) ? 310 * MIB : 0), 0);
    return {
      run: run.id,
      ranks: ranks.length,
      epoch: run.epoch,
      position,
      epoch_samples: run.epoch_samples,
      ...(ranks.length > 0 ? { samples_per_second: round(samples * wave(`${run.id} samples`, now())) } : {}),
      ...(ranks.length > 0 ? { epoch_ends: { in_s: left / ((least + most) / 2), earliest_s: left / most, latest_s: left / least } } : {}),
      ...(first
        ? {
            waits: {
              exposed_share: round(exposed(first)),
              ...(stage ? { stage } : {}),
              rank: first.rank,
              node: first.node,
              ...(first.since ? { since: first.since } : {}),
              is_straggler: exposed(first) > EXPOSED && median !== undefined && exposed(first) > 3 * Math.max(EXPOSED / 2, exposed(median)),
            },
          }
        : {}),
      readers: ranks.slice(0, 32).map(({ since, ...one }) => one),
      exchange: { waiting_bytes: waiting, paused_nodes: this.live().filter((one) => one.paused).length, hidden_share: 0.99, unsent_grains: 0 },
    };
  }

  rows({ order = 'name', search = '', offset = 0, limit = 100 }) {
    const rows = this.nodes.filter((one) => one.record.id.includes(search)).map((one) => this.row(one));
    rows.sort((one, other) => (one.id < other.id ? -1 : 1));
    const states = ['live', 'draining', 'unhealthy', 'unanswered', 'lost'];
    const part = (of, whole) => (whole ? of / whole : 0);
    const by = {
      state: (row) => states.indexOf(row.state),
      cache: (row) => (row.cache_limit_bytes === undefined ? -Infinity : part(row.cache_used_bytes, row.cache_limit_bytes)),
      disk: (row) => (row.disk_size_bytes === undefined ? -Infinity : 1 - part(row.disk_free_bytes, row.disk_size_bytes)),
      origin: (row) => row.origin_bytes ?? -Infinity,
      processors: (row) => row.processors ?? -Infinity,
    }[order];
    if (by) {
      const keys = new Map(rows.map((row) => [row.id, by(row)]));
      rows.sort((one, other) => (keys.get(other.id) === keys.get(one.id) ? 0 : keys.get(other.id) - keys.get(one.id)));
    }
    return { total: rows.length, offset, rows: rows.slice(offset, offset + limit) };
  }

  row(of) {
    const { id, http } = of.record;
    const state = of.lost ? 'lost' : of.unanswered ? 'unanswered' : of.issues.length > 0 ? 'unhealthy' : of.draining ? 'draining' : 'live';
    const issues = of.issue_lines ?? of.issues.map((issue) => `its disk takes ${(issue.measured / 1e3).toFixed(1)} ms to read a grain, ${Math.floor(issue.measured / issue.others)} times the median of the others (${(issue.others / 1e3).toFixed(1)} ms)`);
    const disk = of.disks.find((one) => one.directory === 'cache');
    return {
      id,
      http,
      state,
      draining: !of.lost && of.draining !== undefined,
      ...(issues.length > 0 && !of.lost ? { issues } : {}),
      hosted_partitions: of.lost ? 0 : of.hosted,
      ranks: of.lost || of.unanswered ? 0 : of.ranks.length,
      ...(of.lost || of.unanswered
        ? {}
        : {
            cache_used_bytes: Math.round(of.cache_used),
            cache_limit_bytes: of.cache_limit,
            disk_free_bytes: disk?.free_bytes ?? 0,
            disk_size_bytes: disk?.size_bytes ?? 0,
            origin_bytes: of.origin_bytes,
            served_bytes: 1187 * 524_288,
            misses: 1240,
            corrupt_grains: of.corrupt,
            processors: round(of.processors),
            resident_bytes: of.resident,
            start: of.record.started_at,
            release: of.release,
            certificate_ends: of.certificate_ends,
          }),
      ...(of.lost && of.last_seen ? { last_seen: of.last_seen } : {}),
    };
  }

  series(id, names, points) {
    const of = this.find(id);
    if (!of || of.lost) return undefined;
    const end = Math.floor(now());
    const size = Math.ceil(720 / points);
    const length = Math.floor(720 / size);
    const every = 5 * size;
    const at = Array.from({ length }, (_, number) => end - (length - 1 - number) * every);
    const series = [];
    const add = (name, labels, value) => {
      if (names.length > 0 && !names.some((one) => name.startsWith(one))) return;
      series.push({ name, ...(Object.keys(labels).length > 0 ? { labels } : {}), points: at.map((time) => short(value(time))) });
    };
    const steady = (seed, value, wobble) => (time) => value * wave(`${id} ${seed}`, time, wobble);
    add('attached_ranks', {}, () => of.ranks.length);
    add('cache_limit_bytes', {}, () => of.cache_limit);
    add('cache_used_bytes', {}, (time) => of.cache_used - Math.max(0, end - time) * 40_000);
    for (const disk of of.disks) {
      const falls = disk.full ? disk.free_bytes / disk.full.in_s : 200_000;
      add('disk_free_bytes', { directory: disk.directory }, (time) => disk.free_bytes + (end - time) * falls);
    }
    add('corrupt_grains_per_second', { location: 'disk' }, (time) => (of.corrupt > 0 && Math.floor(time / 300) % 3 === 0 ? 0.02 : 0));
    add('disk_read_seconds', {}, (time) => (of.read_micros / 1e6) * (end - time > 1300 && of.read_micros > 10_000 ? 0.03 : wave(`${id} r`, time, 0.1)));
    add('disk_sync_seconds', {}, steady('sync', of.sync_micros / 1e6, 0.2));
    add('exchange_received_bytes_per_second', {}, steady('in', 9.1e6, 0.3));
    add('exchange_sent_bytes_per_second', {}, steady('out', 9.4e6, 0.3));
    add('exchange_stalled_share', {}, () => 0);
    add('miss_bytes_per_second', { from: 'origin' }, steady('mo', 2.1e4, 0.5));
    add('miss_bytes_per_second', { from: 'peer' }, steady('mp', 6.2e5, 0.4));
    add('origin_read_bytes_per_second', {}, (time) => (end - time > 2500 ? 62e6 * wave(`${id} o`, time, 0.1) : 3e4));
    add('pressure_share', { resource: 'cpu' }, steady('pc', 0.06, 0.3));
    add('pressure_share', { resource: 'io' }, (time) => (of.read_micros > 10_000 && end - time < 1300 ? 0.44 : 0.02) * wave(`${id} pi`, time, 0.2));
    add('pressure_share', { resource: 'memory' }, () => 0);
    add('process_processors', {}, steady('cpu', of.processors, 0.15));
    add('process_resident_bytes', {}, steady('rss', of.resident, 0.02));
    add('served_bytes_per_second', {}, steady('served', 7.4e5, 0.4));
    for (const reader of of.ranks) {
      const labels = { run: reader.run, rank: String(reader.rank) };
      const slow = (time) => end - time < 1300;
      const isWaiting = Object.values(reader.waits).reduce((sum, share) => sum + share, 0) > EXPOSED;
      add('rank_compute_share', labels, () => 0.97);
      add('rank_samples_per_second', labels, (time) => (this.scenario === 'trouble' && !slow(time) ? 1560 : reader.samples) * wave(`${reader.run} s`, time));
      for (const stage of STAGES) {
        const share = reader.waits[stage] ?? 0;
        add('rank_wait_share', { ...labels, stage }, (time) => (isWaiting && !slow(time) ? 0.008 : share) * wave(`${id}${reader.rank}${stage}`, time, 0.12));
      }
    }
    series.sort((one, other) => (one.name < other.name ? -1 : one.name > other.name ? 1 : 0));
    return { node: id, every_s: every, end, series };
  }

  /** 10^5 shards, of which a node answers with the first few. */
  hot(by, limit, id) {
    const names = this.live().map((one) => one.record.id);
    const at = ({ shard }) => {
      const first = Number.parseInt(shard.slice(0, 8), 16);
      return [...new Set(Array.from({ length: 1 + (first % 5) }, (_, step) => names[(first + 7 * step) % names.length]))].sort();
    };
    const list = (this.hottest ?? (this.runs.length === 0 ? [] : hottest(by))).slice(0, limit);
    const heat = (one, share) => ({
      reads: round(one.reads * share),
      ...(one.reads < 200 ? { reads_error: 3 } : {}),
      misses: round(one.misses * share),
      bytes: Math.round(one.bytes * share),
      ...(one.miss_seconds ? { miss_seconds: round(one.miss_seconds) } : {}),
    });
    const where = (one) => (id === undefined ? { nodes: one.nodes ?? at(one) } : {});
    return {
      ...(id === undefined ? {} : { node: id }),
      half_life_s: 600,
      shards: list.map((one) => ({ shard: one.shard, ...heat(one, id === undefined ? 1 : 0.3), ...where(one) })),
      grains: list.map((one) => ({ shard: one.shard, first_row: 64, ...heat(one, id === undefined ? 0.3 : 0.1), ...where(one) })),
    };
  }

  view(id) {
    const info = this.listed.find((one) => one.id === id);
    if (!info) return undefined;
    const ranks = this.ranksOf(id);
    const hosts = this.live().slice(0, 16).map((one) => one.record.id);
    return {
      run: { id, plan: info.plan, version: info.version, virtual_ranks: info.virtual_ranks, began: info.began, ...(info.state === 'running' ? {} : { left: info.seen }) },
      placement: ranks.length === 0 ? null : { generation: 3, hosts, of_partition: Array.from({ length: 48 }, (_, number) => number % hosts.length) },
      nodes: this.live().map((one) => one.record),
      room: ranks.length === 0 ? null : { needed_bytes: 166 * GIB, cache_bytes: 256 * GIB, from_store_bytes_per_epoch: 0, by_rows: false },
      attached: ranks.length,
    };
  }

  traffic(id) {
    const view = this.view(id);
    if (!view?.placement) return undefined;
    const nodes = view.placement.hosts.slice(0, 16);
    const of = (seed, mean) => nodes.map((from) => nodes.map((to) => (from === to ? 0 : Math.round(mean * (0.9 + 0.2 * chance(`${seed} ${from} ${to}`))))));
    const predicted = nodes.map((from) => nodes.map((to) => (from === to ? 0 : 2.7 * GIB)));
    return { nodes, hosts: view.placement.hosts.length, exchange: of('exchange', 2.7 * GIB), predicted, served: of('served', 3 * MIB) };
  }

  /** Each run has each grain once, but for a few that a draining node still has. */
  copies(shard) {
    const names = this.live().map((one) => one.record.id);
    const grains = 64;
    const nodes = this.runs.flatMap(({ id, plan, version }) =>
      names.slice(0, 16).map((node, at, { length }) => {
        const hosted = Math.floor(((at + 1) * grains) / length) - Math.floor((at * grains) / length);
        const cached = hosted + (at === 0 ? 3 : 0);
        return { node, run: id, plan: plan ?? digest('plan'), version: version ?? digest('version'), grains, cached, bytes: cached * 524_288, hosted };
      }));
    return {
      shard,
      bytes: 32 * 1024 ** 2,
      nodes,
      more_nodes: Math.max(0, names.length - 16) * this.runs.length,
      runs: this.runs.map(({ id, plan, version }) => ({ run: id, plan: plan ?? digest('plan'), version: version ?? digest('version'), grains, cached: grains + 3 })),
      ...(this.nodes.some((one) => one.unanswered) ? { unanswered: this.nodes.filter((one) => one.unanswered).map((one) => one.record.id) } : {}),
    };
  }

  /** The trace of a run: what each of its hosts did, and a counter. */
  trace(id, limit) {
    const view = this.view(id);
    if (!view?.placement) return undefined;
    const hosts = view.placement.hosts.slice(0, limit);
    const end = Math.floor(now() * 1e6);
    const events = hosts.flatMap((node, at) => [
      { name: 'process_name', ph: 'M', pid: at, args: { name: `node ${node}` } },
      { name: 'epoch 1', ph: 'X', pid: at, tid: 64, ts: end - 4_000_000, dur: 900_000, args: { grains: 12 } },
      { name: `rank ${at} reads`, ph: 'C', pid: at, ts: end, args: { 'samples/s': 640 } },
    ]);
    return { traceEvents: events, displayTimeUnit: 'ms', otherData: { run: id, hosts: view.placement.hosts.length, nodes: hosts } };
  }

  placement(id) {
    const view = this.view(id);
    if (!view?.placement) return undefined;
    const { hosts, of_partition } = view.placement;
    const draining = this.nodes.find((one) => one.draining && !one.lost);
    return {
      run: id,
      plan: view.run.plan,
      generation: 3,
      epoch: this.runs.find((one) => one.id === id)?.epoch ?? 0,
      partition_bytes: Math.round(3.1 * GIB),
      remote_bytes_per_epoch: 0,
      remote_bytes_per_epoch_then: 0,
      nodes: hosts.map((name, at) => ({
        node: name, hosts: of_partition.filter((host) => host === at).length, room: 20, ranks: this.find(name).ranks.filter((one) => one.run === id).map((one) => one.rank), is_live: true,
        ...(this.find(name).draining ? { draining: this.find(name).draining } : {}),
      })),
      partitions: of_partition.map((host, partition) => ({ partition, node: hosts[host], why: 'its_rank' })),
      moves: draining ? [{ partition: 7, from: draining.record.id, to: hosts[0], because: 'host_drains', copied_bytes: Math.round(3.1 * GIB), saved_bytes_per_epoch: 0, added_bytes_per_epoch: 0 }] : [],
      ...(draining ? { waits: 'copying' } : {}),
    };
  }

  audit(id) {
    const run = this.runs.find((one) => one.id === id);
    if (!run) return [];
    const world = this.ranksOf(id).length;
    const share = Math.floor(run.epoch_samples / Math.max(1, world));
    return Array.from({ length: run.epoch }, (_, epoch) =>
      Array.from({ length: epoch === run.epoch - 1 ? world - 1 : world }, (_, number) => ({ rank: number, world, epoch, samples: share, digest_sum: digest(`${id} ${epoch} ${number}`), global_batch_size: 256 * world })),
    ).flat();
  }
}

let shards;
const sorted = new Map();

/** The first 1,000 of 10^5 shards. */
function hottest(by) {
  shards ??= Array.from({ length: 100_000 }, (_, number) => {
    const reads = 4000 / (number + 1) ** 0.6;
    const luck = chance(`shard ${number}`);
    const misses = reads * luck * 0.04;
    return { shard: digest(`shard ${number}`), reads, misses, bytes: reads * 524_288, ...(misses > 0.5 ? { miss_seconds: 0.001 + 0.2 * luck ** 4 } : {}) };
  });
  const key = { reads: (one) => one.reads, bytes: (one) => one.bytes, misses: (one) => one.misses, latency: (one) => one.miss_seconds ?? 0 }[by];
  if (!sorted.has(by)) sorted.set(by, [...shards].sort((one, other) => key(other) - key(one)).slice(0, 1000));
  return sorted.get(by);
}

function round(value) {
  return Number(value.toPrecision(5));
}

/** Four digits, as a node sends the points of a series. */
function short(value) {
  return value === 0 ? 0 : Number(value.toPrecision(4));
}
