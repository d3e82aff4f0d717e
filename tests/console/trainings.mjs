// Records of trainings that did not happen, as the answers of a node describe them. The forms are those of client/store/src/record.

import { createHash } from 'node:crypto';

const digest = (text) => createHash('sha256').update(text).digest('hex');
const chance = (text) => Number.parseInt(digest(text).slice(0, 8), 16) / 2 ** 32;

/** The runs with a record: how long each is, and how it ended. */
const TRAININGS = {
  'vit-b16': [{ end: 12_000, of: 24_000, ending: 'underway', starts: [0, 4000, 9100] }, { end: 2000, of: 24_000, ending: 'stopped', starts: [0] }],
  'vit-b16-lr3': [{ end: 6000, of: 24_000, ending: 'failed', reason: 'the loss is NaN in three steps one after the other', starts: [0] }],
  'warm-up': [{ end: 90, of: 90, ending: 'trained', starts: [0], weights: digest('weights') }],
};
/** Samples of a step, virtual ranks and ranks. */
const BATCH = 64;
const VIRTUAL_RANKS = 16;
const WORLD = 8;
/** The step of which one virtual rank has a large loss. */
export const SPIKE = 8437;
/** A step with saved losses that the record does not list: it is before the last ones. */
export const EARLY = 60;

const lossOf = (run, step) => (2.9 * Math.exp(-step / 3500) + 0.6) * (0.96 + 0.08 * chance(`${run} ${step}`)) * (run === 'vit-b16-lr3' ? 1.2 : 1) * (step === SPIKE ? 4 : 1);
const normOf = (run, step) => (step === SPIKE ? 31 : 0.8 + 0.6 * chance(`norm ${run} ${step}`));
const rateOf = (step) => 1e-3 * Math.min(1, (step + 1) / 500);

export class Trainings {
  /** Counts the publications of records that are underway: each has another id. */
  published = 0;
  /** The step without a loss. */
  bad = undefined;
  /** Whether losses are saved of EARLY, too: the page then asks about each step before the listed ones, and a step without is not found. */
  hasEarly = false;
  /** The record whose version is no longer in the store. */
  lost = undefined;

  /** `datasets` are those of datasets.mjs: the trainings read the first of them. `hostile` is a text in place of what a user wrote. */
  constructor(datasets, hostile) {
    const of = datasets.all[0];
    this.datasets = datasets;
    this.of = of;
    this.hostile = hostile;
  }

  records(run) {
    const began = Math.floor(Date.now() / 1000) - 9200;
    const { hostile } = this;
    const listed = TRAININGS[hostile === undefined ? run : 'vit-b16-lr3'] ?? [];
    return listed.map(({ starts, ...more }, at) => ({
      id: digest(`record ${run} ${at} ${more.ending === 'underway' ? this.published : ''}`),
      dataset: hostile ?? this.of.name,
      version: this.of.version,
      plan: this.datasets.plans.find((plan) => plan.version === this.of.version).id,
      store: hostile ?? 's3://flowers/shardd',
      virtual_ranks: VIRTUAL_RANKS,
      global_batch_size: BATCH,
      first: 0,
      written: began + 9000 - 5000 * at,
      is_exact: true,
      launches: starts.map((first_step, number) => ({ first_step, world: WORLD, started: began + 2000 * number, until: began + 2000 * number + 1900, device: hostile ?? 'cpu: 8 threads', ...(number > 0 || starts.length === 1 ? { memory_bytes: (number + 1.5) * 2 ** 30 } : {}) })),
      checkpoints: { count: Math.floor(more.end / 100), last: Array.from({ length: Math.min(100, Math.floor(more.end / 100)) }, (_, number) => Math.floor(more.end / 100) - number).reverse().map((number) => ({ step: 100 * number, at: began + number, bytes: 3 * 2 ** 20, written_bytes: 2 ** 20, took_s: 1.2 })) },
      losses: more.end > SPIKE ? { count: this.hasEarly ? 2 : 1, last: [SPIKE] } : { count: 0, last: [] },
      settings: { model: '"small"' },
      ...more,
      ...(hostile === undefined ? {} : { reason: hostile }),
    }));
  }

  /** A record of a run; `undefined` if there is none. */
  find(run, id) {
    return this.records(run).find((record) => record.id === id);
  }

  course(run, record, most) {
    const size = Math.ceil(record.end / most);
    const points = [];
    for (let step = 0; step < record.end; step += size) {
      const steps = Array.from({ length: Math.min(size, record.end - step) }, (_, at) => step + at);
      const losses = steps.map((one) => lossOf(run, one));
      const loss_max = Math.max(...losses);
      points.push({
        step, steps: steps.length, epoch: Math.floor(step / this.stepsOfEpoch()),
        loss: losses.reduce((sum, loss) => sum + loss, 0) / losses.length, loss_min: Math.min(...losses), loss_max, step_of_max: steps[losses.indexOf(loss_max)],
        accuracy: 1 - Math.exp(-step / 4000), learning_rate: rateOf(step), gradient_norm: Math.max(...steps.map((one) => normOf(run, one))), skipped: 0,
      });
    }
    return { first: 0, end: record.end, of: record.of, is_sampled: false, points };
  }

  /** What a training read: every epoch whole but for the last one. */
  summary(run, record) {
    const { samples, bytes, columns } = this.of;
    const perEpoch = this.stepsOfEpoch();
    const epochs = Array.from({ length: Math.ceil(record.end / perEpoch) }, (_, epoch) => ({ epoch, samples: Math.min(samples, (record.end - epoch * perEpoch) * BATCH), root: null }));
    const samples_read = Math.max(0, ...epochs.map((epoch) => epoch.samples));
    if (this.lost === record.id) return undefined;
    return {
      epochs: epochs.length, samples_read: epochs.reduce((sum, epoch) => sum + epoch.samples, 0),
      trainings: [{ record: record.id, run, dataset: record.dataset, version: record.version, plan: record.plan, from: record.launches[0].started, until: record.written, ending: record.ending, is_underway: record.ending === 'underway', weights: record.weights ?? null, steps_unknown: 0, epochs: epochs.slice(-100) }],
      versions: [{
        dataset: record.dataset, version: record.version, samples, samples_read, bytes, inputs: samples, skipped: 0, classes: 5, config: {},
        amounts: [{ modality: 'image', unit: 'pictures', amount: samples_read }, { modality: 'text', unit: this.hostile ?? 'bytes-of-text', amount: 40 * samples_read }],
        columns: columns.map(({ name, type }) => ({ name, type, nullable: false, media_type: this.hostile ?? (name === 'image' ? 'image/png' : null), modality: null, amount: null, unit: null })),
        derived_from: [digest('before'), digest('first')],
      }],
    };
  }

  step(run, record, step) {
    const inEpoch = step % this.stepsOfEpoch();
    const loss = step === this.bad ? null : lossOf(run, step);
    const shares = Array.from({ length: VIRTUAL_RANKS }, (_, virtual_rank) => ({
      virtual_rank, rank: Math.floor((virtual_rank * WORLD) / VIRTUAL_RANKS), samples: BATCH / VIRTUAL_RANKS, correct: 3,
      loss: step === SPIKE ? (virtual_rank === 5 ? loss * 13 : loss / 5) : virtual_rank === 5 || loss !== null ? loss : 0.7,
    }));
    return {
      step, epoch: Math.floor(step / this.stepsOfEpoch()), step_of_epoch: inEpoch, position: inEpoch * BATCH, global_batch_size: BATCH, virtual_ranks: VIRTUAL_RANKS, world: WORLD,
      learning_rate: rateOf(step), loss, gradient_norm: normOf(run, step), is_skipped: false, shares,
    };
  }

  /** The losses of a step's samples, the largest first; the samples are those that the plan of the record has there. */
  losses(record, step, most) {
    const { epoch, position, loss } = this.step('', record, step);
    const plan = this.datasets.plans.find((one) => one.id === record.plan);
    const read = this.datasets.at(plan, { epoch, position, size: BATCH, world: WORLD, virtual_ranks: VIRTUAL_RANKS });
    const largest = read.map(({ sample, position: at, virtual_rank }) => ({ sample, position: at, virtual_rank, loss: virtual_rank === 5 ? loss * 13 + chance(`${sample}`) : chance(`${sample}`), answers: 1 }));
    largest.sort((one, other) => other.loss - one.loss);
    return { step, samples: largest.length, mean: loss, largest: [{ ...largest[0], loss: null }, ...largest.slice(1)].slice(0, most) };
  }

  stepsOfEpoch() {
    return Math.max(1, Math.ceil(this.of.samples / BATCH));
  }
}
