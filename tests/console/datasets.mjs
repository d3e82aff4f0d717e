// Datasets that do not exist: pictures, texts, sounds, lists of numbers and nested values, as a node describes them.

import { createHash } from 'node:crypto';
import { deflateSync } from 'node:zlib';

const digest = (text) => createHash('sha256').update(text).digest('hex');
const chance = (text) => Number.parseInt(digest(text).slice(0, 8), 16) / 2 ** 32;
const now = Math.floor(Date.now() / 1000);

// --- media -----------------------------------------------------------------------------------------------------------

const CRC = Array.from({ length: 256 }, (_, byte) => {
  let value = byte;
  for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? 0xedb88320 ^ (value >>> 1) : value >>> 1;
  return value >>> 0;
});

function chunk(type, data) {
  const body = Buffer.concat([Buffer.from(type), data]);
  let crc = 0xffffffff;
  for (const byte of body) crc = CRC[(crc ^ byte) & 255] ^ (crc >>> 8);
  const [length, end] = [Buffer.alloc(4), Buffer.alloc(4)];
  length.writeUInt32BE(data.length);
  end.writeUInt32BE((crc ^ 0xffffffff) >>> 0);
  return Buffer.concat([length, body, end]);
}

/** A picture in the PNG format; `colour` has the bytes of a pixel. */
function png(width, height, colour) {
  const rows = Buffer.alloc(height * (1 + 3 * width));
  for (let y = 0; y < height; y += 1) for (let x = 0; x < width; x += 1) rows.set(colour(x, y), y * (1 + 3 * width) + 1 + 3 * x);
  const header = Buffer.alloc(13);
  header.writeUInt32BE(width, 0);
  header.writeUInt32BE(height, 4);
  header.set([8, 2], 8);
  return Buffer.concat([Buffer.from('89504e470d0a1a0a', 'hex'), chunk('IHDR', header), chunk('IDAT', deflateSync(rows)), chunk('IEND', Buffer.alloc(0))]);
}

const COLOURS = [[240, 200, 60], [214, 72, 90], [250, 180, 40], [200, 40, 80], [232, 120, 190]];

/** A flower in front of a meadow. */
function flower(number, kind) {
  const petals = 5 + Math.floor(8 * chance(`petals ${number}`));
  const [size, turn] = [0.5 + 0.4 * chance(`size ${number}`), 6 * chance(`turn ${number}`)];
  const [width, height] = [120, 90];
  return png(width, height, (x, y) => {
    const [dx, dy] = [(x - width / 2) / (height / 2), (y - height / 2) / (height / 2)];
    const [far, angle] = [Math.hypot(dx, dy), Math.atan2(dy, dx) + turn];
    if (far < 0.16 * size) return [110, 70, 30];
    if (far < size * (0.55 + 0.45 * Math.abs(Math.cos((petals * angle) / 2)))) return COLOURS[kind].map((one) => Math.max(0, one - 70 * far));
    return [60 + 30 * Math.sin(x / 5 + number), 120 + 25 * Math.cos(y / 7), 50];
  });
}

/** A tone of a third of a second in the WAV format. */
function wav(number) {
  const [rate, count] = [8000, 2600];
  const header = Buffer.alloc(44);
  header.write('RIFF', 0);
  header.writeUInt32LE(36 + count, 4);
  header.write('WAVEfmt ', 8);
  header.writeUInt32LE(16, 16);
  header.writeUInt16LE(1, 20);
  header.writeUInt16LE(1, 22);
  header.writeUInt32LE(rate, 24);
  header.writeUInt32LE(rate, 28);
  header.writeUInt16LE(1, 32);
  header.writeUInt16LE(8, 34);
  header.write('data', 36);
  header.writeUInt32LE(count, 40);
  const pitch = 220 * 2 ** ((number % 12) / 12);
  return Buffer.concat([header, Buffer.from(Array.from({ length: count }, (_, at) => 128 + 90 * Math.sin((2 * Math.PI * pitch * at) / rate) * Math.exp(-at / 1400)))]);
}

// --- datasets --------------------------------------------------------------------------------------------------------

const number = (value, name) => ({ kind: 'number', value, ...(name === undefined ? {} : { class: name }) });
const string = (text) => ({ kind: 'text', text: text.slice(0, 2000), length: Buffer.byteLength(text) });
const media = (media_type, bytes) => ({ kind: 'media', media_type, length: bytes.length });
const list = (type, values) => ({ kind: 'list', type, length: values.length, values: values.slice(0, 4096) });
const spread = (of, min, max, mean, variance) => ({ of, min, max, mean, variance });

const FLOWERS = ['daisy', 'dandelion', 'rose', 'sunflower', 'tulip'];
const WORDS = ['yes', 'no', 'up', 'down', 'left', 'right', 'on', 'off', 'stop', 'go'];
const LINES = [
  'First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.',
  'MENENIUS:\nI tell you, friends, most charitable care\nHave the patricians of you.\tFor your wants,\nYour suffering in this dearth, you may as well\nStrike at the heaven with your staves as lift them',
  'ROMEO:\nO, she doth teach the torches to burn bright!\r\nIt seems she hangs upon the cheek of night\r\nLike a rich jewel in an Ethiope\u2019s ear;',
];

/** A handwritten ring or stroke, in bytes. */
function digit(sample) {
  const kind = sample % 10;
  const [radius, lean] = [6 + 3 * chance(`r ${sample}`), chance(`l ${sample}`) - 0.5];
  return Array.from({ length: 784 }, (_, at) => {
    const [x, y] = [(at % 28) - 14 + lean * 6 * ((Math.floor(at / 28) - 14) / 14), Math.floor(at / 28) - 14];
    const far = kind % 2 === 0 ? Math.abs(Math.hypot(x * 1.3, y) - radius) : Math.abs(x) + Math.max(0, Math.abs(y) - radius);
    return Math.max(0, Math.min(255, Math.round(255 * (1.6 - far / 1.6))));
  });
}

const tiles = (sample) => Array.from({ length: 3072 }, (_, at) => {
  const [x, y, colour] = [Math.floor(at / 3) % 32, Math.floor(at / 96), at % 3];
  return Math.floor(127 + 120 * Math.sin((x + (sample % 7)) / (3 + colour)) * Math.cos(y / (4 + colour)));
});

/** The datasets of every cluster. */
function usual() {
  return [
    dataset('flowers', {
      samples: 3670, shards: 12, row_bytes: 61_000, commits: ['ingest', 'ingest', 'reshard'], tags: ['v1', 'paper'], plans: 3,
      columns: [
        { name: 'image', type: 'Binary', nullable: false, spread: spread('lengths', 21_004, 248_112, 59_821, 4.1e8) },
        { name: 'label', type: 'Int64', nullable: false, spread: spread('values', 0, 4, 2.04, 1.9) },
        { name: 'file', type: 'Utf8', nullable: true, present: 3600, spread: spread('lengths', 14, 31, 25.3, 12) },
      ],
      label_column: 'label',
      labels: FLOWERS.map((name, at) => ({ label: String(at), class: name, samples: [633, 898, 641, 699, 799][at] })),
      skipped: [{ name: 'daisy/README.txt', reason: 'not a picture' }, { name: 'rose/8981.jpg', reason: 'the file ends before its last row: 4,096 of 11,201 bytes' }],
      config: { reader: 'folder', size: '64MiB', classes: FLOWERS },
      values(sample) {
        const kind = sample % 5;
        return [media('image/png', flower(sample, kind)), number(kind, FLOWERS[kind]), sample % 50 === 7 ? null : string(`${FLOWERS[kind]}/${digest(`f${sample}`).slice(0, 9)}.png`)];
      },
      content: (sample, column) => (column === 'image' ? ['image/png', sample === 3 ? flower(sample, 3).subarray(0, 400).fill(7, 8, 60) : flower(sample, sample % 5)] : ['text/plain', Buffer.from('daisy.png')]),
    }),
    dataset('tinyshakespeare', {
      samples: 32_777, shards: 2, row_bytes: 210, commits: ['ingest'], tags: [], plans: 1,
      columns: [{ name: 'text', type: 'LargeUtf8', nullable: false, spread: spread('lengths', 8, 9144, 181, 7_100) }],
      values: (sample) => [string(sample === 5 ? LINES[1].repeat(40) : LINES[sample % 3])],
      content: () => ['text/plain', Buffer.from(LINES[1].repeat(40))],
    }),
    dataset('speech-commands', {
      samples: 105_829, shards: 34, row_bytes: 32_000, commits: ['ingest'], tags: ['v0.02'], plans: 0,
      columns: [{ name: 'audio', type: 'Binary', nullable: false }, { name: 'word', type: 'Dictionary(Int16, Utf8)', nullable: false }, { name: 'speaker', type: 'Utf8', nullable: false }],
      label_column: 'word',
      labels: WORDS.map((word, at) => ({ label: word, samples: 10_800 - 44 * at })),
      values: (sample) => [media('audio/wav', wav(sample)), string(WORDS[sample % 10]), string(digest(`s${sample % 2600}`).slice(0, 8))],
      content: (sample) => ['audio/wav', wav(sample)],
    }),
    dataset('digits', {
      samples: 60_000, shards: 4, row_bytes: 6_900, commits: ['ingest'], tags: ['v1'], plans: 2,
      columns: [
        { name: 'pixels', type: 'FixedSizeList(784 x UInt8)', nullable: false, spread: spread('values', 0, 255, 33.31, 6_170) },
        { name: 'label', type: 'UInt8', nullable: false, spread: spread('values', 0, 9, 4.45, 8.3) },
        { name: 'colours', type: 'FixedSizeList(3072 x UInt8)', nullable: false },
        { name: 'embedding', type: 'List(Float32)', nullable: true, present: 59_000, spread: spread('values', -3.21, 3.18, 0.00412, 0.98) },
        { name: 'box', type: 'FixedSizeList(4 x Float32)', nullable: false },
      ],
      label_column: 'label',
      labels: Array.from({ length: 10 }, (_, at) => ({ label: String(at), samples: 6000 })),
      values: (sample) => [
        list('UInt8', digit(sample)), number(sample % 10), list('UInt8', tiles(sample)), sample % 60 === 4 ? null : list('Float32', Array.from({ length: 768 }, (_, at) => (at === 9 ? 'NaN' : 2 * Math.sin(at / 40 + sample) * chance(`${at}`)))),
        list('Float32', [0.1, 0.25, 0.5, null]),
      ],
      content: () => ['application/octet-stream', Buffer.from('')],
    }),
    dataset('dialogues', {
      samples: 1200, shards: 3, row_bytes: 2_100, commits: ['ingest'], tags: [], plans: 1,
      columns: [
        { name: 'turns', type: 'List(Struct(role Utf8, content Utf8))', nullable: false, spread: spread('lengths', 1, 31, 4.4, 9) },
        { name: 'score', type: 'Float64', nullable: true, present: 900, spread: spread('values', -1, 1, 0.21, 0.3) },
        { name: 'is_checked', type: 'Boolean', nullable: false },
        { name: 'at', type: 'Timestamp(Millisecond, Some("UTC"))', nullable: false },
        { name: 'id', type: 'UInt64', nullable: false },
        { name: 'key', type: 'FixedSizeBinary(96)', nullable: false },
      ],
      values: (sample) => [
        { kind: 'nested', json: [{ role: 'user', content: 'Why was this sample read twice?' }, { role: 'assistant', content: 'It was not: the audit has it once.', sources: { pages: [sample, 12], checked: true } }], is_cut: sample % 4 === 1 },
        sample % 4 === 2 ? null : number(Number(chance(`score ${sample}`).toFixed(6))), { kind: 'bool', value: sample % 3 === 0 },
        { kind: 'time', text: `2026-11-0${1 + (sample % 9)}T12:04:31.250Z` }, number('18446744073709551615'), { kind: 'bytes', hex: digest(`k${sample}`) + digest(`l${sample}`), length: 96 },
      ],
      content: (sample) => ['application/octet-stream', Buffer.from(digest(`k${sample}`), 'hex')],
    }),
    dataset('empty', { samples: 0, shards: 0, row_bytes: 0, commits: ['ingest'], tags: [], plans: 0, columns: [{ name: 'x', type: 'Int64', nullable: false }], values: () => [], content: () => ['text/plain', ''] }),
  ];
}

/** 250 datasets, one with 100,000 shards. */
function many() {
  const labels = Array.from({ length: 1000 }, (_, at) => ({ label: `n${String(at).padStart(8, '0')}`, class: `kind ${at}`, samples: Math.ceil(900_000 / (at + 1)) }));
  return [
    ...usual(),
    dataset('web-pairs', {
      samples: 400_000_000, shards: 100_000, row_bytes: 41_000, commits: Array.from({ length: 120 }, (_, at) => (at === 0 ? 'ingest' : 'append')), tags: ['v1'], plans: 40,
      columns: [{ name: 'image', type: 'Binary', nullable: false }, { name: 'label', type: 'Utf8', nullable: false }, ...Array.from({ length: 60 }, (_, at) => ({ name: `feature_${at}`, type: 'Float32', nullable: true }))],
      label_column: 'label',
      labels,
      distinct: 21_843,
      values: (sample) => [media('image/png', flower(sample, sample % 5)), string(labels[sample % 1000].label), ...Array.from({ length: 60 }, (_, at) => number(Number(chance(`${sample} ${at}`).toFixed(5))))],
      content: (sample) => ['image/png', flower(sample, sample % 5)],
    }),
    ...Array.from({ length: 244 }, (_, at) => dataset(`sweep-${String(at).padStart(3, '0')}`, { samples: 1000 + at, shards: 1, row_bytes: 80, commits: ['ingest'], tags: [], plans: 0, columns: [{ name: 'x', type: 'Int64', nullable: false }], values: (sample) => [number(sample)], content: () => ['text/plain', ''] })),
  ];
}

export const HOSTILE = '"><svg onload=window.__owned=1> ../../v1/%2e%2e?#@x';

function hostile() {
  const script = '<script>window.__owned = 1</script><img src=x onerror="window.__owned = 1">';
  const bidi = 'safe\u202egnp.exe\u2066 \u0000\u0007\u001b[31m\r\n\u007f\u0085\ufeff\u200b';
  const long = 'x'.repeat(120_000);
  const svg = Buffer.from('<svg xmlns="http://www.w3.org/2000/svg" width="40" height="40"><script>parent.__owned = 1; window.__owned = 1</script><rect width="40" height="40" fill="red"/></svg>');
  return [
    dataset(HOSTILE, {
      samples: 40, shards: 3, row_bytes: 1e300, commits: ['ingest', script], tags: [script, long], plans: 2, message: `${script}${bidi}`,
      columns: [
        { name: script, type: script, nullable: true, spread: spread('values', -1e308, 1e308, 5e-324, -1) },
        { name: '__proto__', type: long, nullable: false },
        { name: `a/b?c#d%2e..${bidi}`, type: 'Binary', nullable: false },
        { name: 'svg', type: 'Binary', nullable: false },
        { name: 'html', type: 'Binary', nullable: false },
        { name: 'nested', type: 'Struct', nullable: false },
        { name: 'numbers', type: 'List(Float64)', nullable: false },
        { name: long, type: 'Int64', nullable: false },
      ],
      label_column: script,
      labels: [{ label: script, class: `${script}${bidi}`, samples: 20 }, { label: long, samples: 15 }, { label: '__proto__', samples: 5 }],
      skipped: [{ name: `../../${script}`, reason: `${script}${bidi}${long}` }],
      config: { [script]: bidi, __proto__: null, long },
      values: () => [
        string(`${script}\n${bidi}${long}`), number(long, script), media('image/png', Buffer.alloc(900)), media('image/svg+xml', svg), media('text/html', svg),
        { kind: 'nested', json: { [script]: [bidi, { constructor: 1 }] }, is_cut: true }, list(script, ['NaN', 'Infinity', '-Infinity', null, script, 1e308, -1e308, ...Array(18).fill(0)]), number('NaN'),
      ],
      content: (_, column) => (column === 'svg' ? ['image/svg+xml', svg] : column === 'html' ? ['text/html', svg] : ['application/octet-stream', Buffer.alloc(900, '<script>')]),
    }),
    dataset('constructor', { samples: 1, shards: 1, row_bytes: 1, commits: ['ingest'], tags: [], plans: 0, columns: [], values: () => [], content: () => ['text/plain', ''] }),
  ];
}

function dataset(name, more) {
  const version = digest(`version of ${name}`);
  const commits = more.commits.map((operation, at) => ({
    id: digest(`commit ${name} ${at}`), format: 1, dataset: name, version: at === more.commits.length - 1 ? version : digest(`version of ${name}, ${at}`), parent: at === 0 ? null : digest(`commit ${name} ${at - 1}`),
    number: at + 1, time: now - 86_400 * (more.commits.length - at), operation, message: more.message ?? (operation === 'reshard' ? 'larger shards' : ''),
    samples: more.samples, bytes: Math.round(more.samples * more.row_bytes * 1.02), shards: more.shards,
  }));
  return { name, version, skipped: [], config: { reader: 'folder' }, ...more, commits };
}

/** All datasets of a scenario, with the answers to all questions about them. */
export class Datasets {
  constructor(scenario) {
    this.all = scenario === 'large' ? many() : scenario === 'hostile' ? hostile() : usual();
    this.all.sort((one, other) => (one.name < other.name ? -1 : 1));
    this.plans = this.all
      .flatMap((of) => Array.from({ length: of.plans }, (_, at) => ({ id: digest(`plan ${of.name} ${at}`), dataset: of.name, version: of.version, created: now - 80_000 + 60 * at, seed: at })))
      .sort((one, other) => one.created - other.created);
  }

  named(reference) {
    return this.all.find((of) => of.name === reference) ?? this.all.find((of) => reference.startsWith(`${of.name}@`) && of.tags.includes(reference.slice(of.name.length + 1)));
  }

  /** The dataset of a version; an older one has the samples of the present one. */
  of(version) {
    return this.all.find((of) => of.commits.some((commit) => commit.version === version));
  }

  info(of) {
    const last = of.commits.at(-1);
    return { name: of.name, version: of.version, commit: last.id, commits: last.number, samples: last.samples, bytes: last.bytes, shards: last.shards, committed_at: last.time };
  }

  tags(of) {
    return of.tags.map((tag) => ({ dataset: of.name, tag, version: of.commits[0].version, commit: of.commits[0].id, tagged_at: of.commits[0].time + 40 }));
  }

  summary(version) {
    const of = this.of(version);
    if (!of) return undefined;
    const size = of.row_bytes;
    return {
      version, samples: of.samples, bytes: Math.round(of.samples * size * 1.02), row_bytes: of.samples * size, shards: of.shards, inputs: of.samples > 0 ? Math.ceil(of.samples / 40) : 0,
      skipped: { count: of.skipped.length, first: of.skipped }, columns: of.columns, config: of.config,
      ...(of.labels ? { label_column: of.label_column, labels: { distinct: of.distinct ?? of.labels.length, most: [...of.labels].sort((one, other) => other.samples - one.samples) } } : {}),
      ...(of.samples > 0 ? { row_lengths: { min: size * 0.2, p25: size * 0.7, p50: size * 0.95, p75: size * 1.2, p99: size * 2.8, max: size * 4.1 } } : {}),
    };
  }

  /** What changed since an earlier version: the last shards are new. */
  diff(version, from, stats) {
    const of = this.of(version);
    if (!of || !this.of(from)) return undefined;
    const kept = Math.max(0, of.shards - 2);
    const side = (id) => ({ version: id, samples: of.samples, shards: of.shards, bytes: Math.round(of.samples * of.row_bytes * 1.02) });
    const [samples] = this.rowsOfShard(of, kept);
    const name = of.columns[0]?.name ?? 'x';
    const labels = (of.labels ?? []).slice(0, 100).map((one, at) => ({ label: one.label, ...(one.class === undefined ? {} : { class: one.class }), old: one.samples, new: Math.max(0, one.samples + (at % 2 === 0 ? 40 : -40)) }));
    const numbers = (mean) => ({ count: of.samples, min: -1, max: 3, mean, deviation: 2 });
    const lengths = (by) => Object.fromEntries(['min', 'p25', 'p50', 'p75', 'p99', 'max'].map((key, at) => [key, Math.round(of.row_bytes * by * (0.3 + at))]));
    return {
      old: side(from), new: side(version), same: false,
      diff: {
        schema: of.columns.length < 3 ? [] : [{ change: 'added', column: name, data_type: 'Utf8' }, { change: 'metadata', column: name, key: 'classes', from: null, to: `["${name}"]` }, { change: 'order', from: [name, 'b'], to: ['b', name] }],
        shards: { kept, added: of.shards - kept, removed: 1 }, inputs: { kept: 3, added: 1, removed: 0 }, same_order: false,
        // Of a large version the samples are not compared.
        ...(of.samples > 1e6 ? { same_order: undefined, left_out: 'shards' } : { samples: { kept: samples, added: of.samples - samples, removed: 7 } }),
      },
      ...(stats ? { stats: { labels, more_labels: (of.labels?.length ?? 0) > 100 ? of.labels.length - 100 : undefined, label_distance: 0.0321, row_bytes: [lengths(1), lengths(1.1)], columns: [{ column: name, measured: 'values', old: numbers(1), new: numbers(1.5), difference: 0.25 }] } } : {}),
    };
  }

  rowsOfShard(of, index) {
    const first = Math.floor((of.samples * index) / of.shards);
    return [first, Math.floor((of.samples * (index + 1)) / of.shards) - first];
  }

  shards(version, offset, limit) {
    const of = this.of(version);
    const rows = [];
    for (let index = offset; index < Math.min(of.shards, offset + limit); index += 1) {
      const [first, samples] = this.rowsOfShard(of, index);
      const labels = (of.labels ?? []).slice(0, 64).filter((_, at) => (at + index) % 3 !== 0).slice(0, 12).map((one) => ({ label: one.label, weight: one.samples * (0.3 + chance(`${index} ${one.label.slice(0, 20)}`)) }));
      const whole = labels.reduce((sum, one) => sum + one.weight, 0);
      rows.push({
        index, id: digest(`shard ${of.name} ${index}`), first, samples, bytes: Math.round(samples * of.row_bytes * (0.9 + 0.2 * chance(`b ${index}`))),
        ...(of.labels ? { labels: labels.map((one) => ({ label: one.label, samples: Math.floor((samples * one.weight) / whole) })).sort((one, other) => other.samples - one.samples) } : {}),
      });
    }
    return { total: of.shards, rows };
  }

  samples(version, numbers) {
    const of = this.of(version);
    return {
      total: of.samples,
      rows: numbers.map((sample) => {
        const shard = Math.min(of.shards - 1, Math.floor((sample * of.shards) / of.samples));
        return { sample, shard: digest(`shard ${of.name} ${shard}`), row: sample - this.rowsOfShard(of, shard)[0], digest: digest(`row ${of.name} ${sample}`), values: of.values(sample) };
      }),
    };
  }

  /** A permutation for each plan and epoch: steps of a prime number. */
  at(plan, { epoch, position, size, rank, world, virtual_ranks = 8 }) {
    const { samples } = this.of(plan.version);
    const found = [];
    for (let at = position; at < Math.min(samples, position + size); at += 1) {
      const virtual_rank = Math.floor(((at - position) * virtual_ranks) / size);
      if (rank !== undefined && Math.floor((virtual_rank * world) / virtual_ranks) !== rank) continue;
      const sample = Number((BigInt(at) * 1_000_003n + BigInt(37 * epoch + 11 * plan.seed)) % BigInt(samples));
      found.push({ epoch, position: at, partition: at % 16, virtual_rank, sample, grain: sample, shard: digest(`shard ${sample}`), row: 0 });
    }
    return found;
  }

  /** The labels of partitions: each begins with one of them mostly. Of plans of large versions there are 1,000 partitions. */
  labels(plan, epoch, first, size, most) {
    const of = this.of(plan.version);
    const partitions = of.samples > 1e6 ? 1000 : 16;
    const all = [...(of.labels ?? [])].sort((one, other) => other.samples - one.samples);
    const total = all.reduce((sum, one) => sum + one.samples, 0);
    const [listed, rest] = [all.slice(0, most), all.slice(most)];
    const skew = Math.max(0.05, 0.8 - 0.1 * epoch);
    const samples = Math.floor(of.samples / partitions);
    const sum = (labels) => labels.reduce((more, one) => more + one.samples, 0);
    return {
      version: plan.version, epoch, partitions, is_exact: epoch === 0, is_in_input_order: false, mean_distance: skew, floor: 0.04,
      labels: listed.map((one) => ({ label: one.label.slice(0, 200), ...(one.class === undefined ? {} : { class: one.class.slice(0, 200) }), samples: one.samples, share: one.samples / total })),
      ...(rest.length > 0 ? { others: { labels: rest.length, samples: sum(rest), share: sum(rest) / total } } : {}),
      rows: Array.from({ length: Math.max(0, Math.min(size, partitions - first)) }, (_, at) => {
        const share = (one, place) => skew * ((first + at) % all.length === place ? 1 : 0) + (1 - skew) * (one.samples / total);
        return { partition: first + at, samples, counts: listed.map((one, place) => Math.round(samples * share(one, place))), others: Math.round(samples * rest.reduce((more, one, place) => more + share(one, place + most), 0)), is_exact: epoch === 0, distance: skew * (0.9 + 0.2 * chance(`distance ${first + at}`)) };
      }),
    };
  }

  where(plan, epoch, sample) {
    const samples = BigInt(this.of(plan.version).samples);
    // Euclid's algorithm has the inverse of the step.
    let [one, other, x, y] = [1_000_003n % samples, samples, 1n, 0n];
    while (other > 0n) [one, other, x, y] = [other, one % other, y, x - (one / other) * y];
    const shift = BigInt(37 * epoch + 11 * plan.seed);
    const position = Number(((((BigInt(sample) - shift) * x) % samples) + samples) % samples);
    return { epoch, position, partition: position % 16, sample, grain: sample, shard: digest(`shard ${sample}`), row: 0 };
  }
}
