// The answers of a node, as client/api has them. Each is text from elsewhere: a page shows it, and never runs it.

/** Seconds since 1970. */
export type Seconds = number;

export const STAGES = ['network', 'disk', 'decode', 'transform', 'python'] as const;
export type Stage = (typeof STAGES)[number];
export type WaitShares = Partial<Record<Stage, number>>;

/** A loop that waits for less than this part of its time is not held up by data. */
export const EXPOSED = 0.05;

export interface Forecast {
  in_s: number;
  earliest_s: number;
  latest_s: number;
}

export interface Overview {
  node: string;
  release: string;
  at: Seconds;
  nodes: NodeCounts;
  runs: RunOverview[];
  /** Runs and findings beyond those of the lists. */
  more_runs?: number;
  findings: Finding[];
  more_findings?: number;
  totals: Totals;
}

export interface NodeCounts {
  live: number;
  lost: number;
  draining: number;
  unhealthy: number;
  unanswered: number;
}

export interface Totals {
  cache_used_bytes: number;
  cache_limit_bytes: number;
  origin_bytes: number;
  exchange_bytes: number;
  corrupt_grains: number;
}

export interface RunOverview {
  run: string;
  ranks: number;
  epoch: number;
  position: number;
  epoch_samples: number;
  samples_per_second?: number;
  epoch_ends?: Forecast;
  waits?: RunWaits;
  readers: RankOverview[];
  exchange: RunExchange;
}

export interface RunWaits {
  exposed_share: number;
  stage?: Stage;
  rank: number;
  node: string;
  since?: Seconds;
  is_straggler: boolean;
}

/** The grains of a shard that a node has for a run. */
export interface CachedAt {
  node: string;
  run: string;
  plan: string;
  version: string;
  grains: number;
  cached: number;
  bytes: number;
  hosted?: number;
}

export interface RunOfShard {
  run: string;
  plan: string;
  version: string;
  grains: number;
  cached: number;
}

export interface Copies {
  shard: string;
  bytes: number;
  nodes: CachedAt[];
  more_nodes: number;
  runs: RunOfShard[];
  unanswered?: string[];
}

export interface RankOverview {
  rank: number;
  node: string;
  samples_per_second: number;
  compute_share: number;
  ranks_share?: number;
  wait_shares: WaitShares;
}

export interface RunExchange {
  waiting_bytes: number;
  paused_nodes: number;
  hidden_share?: number;
  unsent_grains: number;
}

/** Bytes between the hosts of a run: a row for each sender, and a column for each receiver. */
export interface Traffic {
  nodes: string[];
  hosts: number;
  exchange: number[][];
  predicted: number[][];
  served: number[][];
  unanswered?: string[];
}

/** A record of a training, which outlives its run. */
export interface RecordInfo {
  id: string;
  dataset?: string;
  version: string;
  plan: string;
  /** The store that has it, as `--record` names it. */
  store: string;
  virtual_ranks: number;
  global_batch_size?: number;
  /** The first step, the step after the last, and the steps of the whole training. */
  first: number;
  end: number;
  of: number;
  ending: 'underway' | 'trained' | 'stopped' | 'failed';
  reason?: string;
  written: Seconds;
  is_exact: boolean;
  weights?: string;
  launches: { first_step: number; world: number; started: Seconds; until: Seconds; device: string; memory_bytes?: number }[];
  /** The last of those that were written. */
  checkpoints: { count: number; last: { step: number; at: Seconds; bytes: number; written_bytes: number; took_s: number }[] };
  /** The last of the steps of which the losses of single samples are saved. */
  losses: { count: number; last: number[] };
}

/** A version that a training read, with how much of which media. */
export interface DataVersion {
  dataset: string;
  version: string;
  samples: number;
  samples_read: number;
  amounts: { modality: string; unit: string; amount: number }[];
  bytes: number;
  columns: { name: string; media_type: string | null }[];
  /** The nearest first. */
  derived_from: string[];
}

/** The data that a training read: its last epochs, and the counts of all. */
export interface TrainingData {
  epochs: number;
  samples_read: number;
  trainings: { plan: string; steps_unknown: number; epochs: { epoch: number; samples: number }[] }[];
  versions: DataVersion[];
}

/** Consecutive steps as a point of a curve. */
export interface CoursePoint {
  step: number;
  steps: number;
  epoch: number;
  loss: number | null;
  loss_min: number | null;
  loss_max: number | null;
  step_of_max: number;
  accuracy: number;
  learning_rate: number;
  gradient_norm: number | null;
  skipped: number;
}

export interface Course {
  first: number;
  end: number;
  of: number;
  is_sampled: boolean;
  points: CoursePoint[];
}

export interface StepExplained {
  step: number;
  epoch: number;
  step_of_epoch: number;
  position: number;
  global_batch_size: number;
  virtual_ranks: number;
  world: number;
  learning_rate: number;
  loss: number | null;
  gradient_norm: number | null;
  is_skipped: boolean;
  shares: { virtual_rank: number; rank: number; samples: number; loss: number | null; correct: number }[];
}

/** The losses of the samples of a step, the largest first. */
export interface StepLosses {
  step: number;
  samples: number;
  mean: number | null;
  largest: { sample: number; position: number; virtual_rank: number; loss: number | null }[];
}

export type Severity = 'info' | 'warning' | 'critical';

export interface Finding {
  severity: Severity;
  kind: string;
  title: string;
  cause: string;
  remedy: string;
  node?: string;
  run?: string;
  rank?: number;
  since?: Seconds;
}

export type RowState = 'live' | 'draining' | 'unhealthy' | 'unanswered' | 'lost';
export type RowOrder = 'name' | 'state' | 'cache' | 'disk' | 'origin' | 'processors';
export type Drain = 'asked' | 'stopping' | 'leaving';

export interface NodeRow {
  id: string;
  http: string;
  state: RowState;
  issues?: string[];
  hosted_partitions: number;
  ranks: number;
  last_seen?: Seconds;
  /** Whether the node is to host nothing, whatever its state. */
  draining: boolean;
  // The numbers of a node that answered.
  cache_used_bytes?: number;
  cache_limit_bytes?: number;
  disk_free_bytes?: number;
  disk_size_bytes?: number;
  origin_bytes?: number;
  served_bytes?: number;
  misses?: number;
  corrupt_grains?: number;
  processors?: number;
  resident_bytes?: number;
  start?: Seconds;
  release?: string;
  certificate_ends?: Seconds;
}

export interface NodeRows {
  total: number;
  offset: number;
  rows: NodeRow[];
}

export interface MachineStatus {
  release: string;
  start: Seconds;
  processors: number;
  resident_bytes: number;
  disks: DiskStatus[];
  pressure?: { cpu: number; io: number; memory: number };
  certificate_ends?: Seconds;
}

export interface DiskStatus {
  directory: 'cache' | 'store' | 'data';
  path: string;
  size_bytes: number;
  free_bytes: number;
  full?: Forecast;
}

export interface NodeStatus {
  node: string;
  cache_used_bytes: number;
  cache_limit_bytes: number;
  cache_grains: number;
  cache_peak_bytes: number;
  origin_bytes: number;
  origin_requests: number;
  origin_reread: number;
  measured?: Measured;
  health_issues?: HealthIssue[];
  exchange_now?: { rate: string; paused: boolean; waiting: { run: string; bytes: number }[] };
  readers?: Reader[];
  metadata?: MetadataStatus;
  machine?: MachineStatus;
  fill_grains: number;
  fill_bytes: number;
  forwarded_grains: number;
  misses_from_peers: number;
  misses_from_origin: number;
  miss_bytes_from_peers: number;
  miss_bytes_from_origin: number;
  corrupt_on_disk: number;
  corrupt_from_peers: number;
  served_grains: number;
  served_bytes: number;
  stalled_s: number;
  exchange_s: number;
  exchange: EpochCount[];
}

export interface Measured {
  disk: { read_micros?: number; sync_micros?: number };
  peers: Peer[];
}

export interface Peer {
  node: string;
  answer_micros?: number;
  silences: number;
  wrong_grains: number;
}

export type Ailment = 'slow_reads' | 'slow_syncs' | 'slow_answers' | 'silence' | 'wrong_grains';

export interface HealthIssue {
  node: string;
  what: Ailment;
  by: string;
  measured: number;
  others: number;
}

export interface Reader {
  run: string;
  rank: number;
  epoch: number;
  transport: 'files' | 'ring' | 'stream';
  position?: number;
  epoch_samples?: number;
  recent?: RecentTime;
  exposed_since?: Seconds;
}

export interface RecentTime {
  over_s: number;
  samples_per_second: number;
  steps_per_second: number;
  compute_share: number;
  wait_shares: WaitShares;
}

export interface MetadataStatus {
  epoch: number;
  trouble?: string;
  copied_at?: Seconds;
  copy_bytes: number;
  is_behind: boolean;
  lag_s: number;
  copy_trouble?: string;
}

export interface EpochExchange {
  expected_grains: number;
  received_grains: number;
  received_bytes: number;
  sent_grains: number;
  sent_bytes: number;
  unsent_grains: number;
  sending_micros: number;
  waited_micros: number;
}

export interface EpochCount extends EpochExchange {
  run: string;
  epoch: number;
}

export interface NodeSeries {
  node: string;
  every_s: number;
  end: Seconds;
  series: Series[];
}

export interface Series {
  name: string;
  labels?: Record<string, string>;
  points: (number | null)[];
}

export type HotOrder = 'reads' | 'bytes' | 'misses' | 'latency';

export interface Heat {
  reads: number;
  reads_error?: number;
  misses: number;
  bytes: number;
  miss_seconds?: number;
}

export interface HotShard extends Heat {
  shard: string;
  nodes?: string[];
}

export interface HotGrain extends HotShard {
  first_row: number;
}

export interface Hot {
  node?: string;
  half_life_s: number;
  shards: HotShard[];
  grains: HotGrain[];
  unanswered?: string[];
}

export type RunState = 'created' | 'running' | 'interrupted' | 'finished' | 'stopped' | 'failed' | 'removing';

export interface RunInfo {
  id: string;
  state: RunState;
  dataset?: string;
  plan?: string;
  version?: string;
  virtual_ranks?: number;
  world?: number;
  began?: Seconds;
  seen?: Seconds;
  stale?: boolean;
}

export interface RunView {
  run: { id: string; plan: string; version: string; virtual_ranks: number; began?: Seconds; left?: Seconds; removing?: boolean };
  placement: { generation: number; hosts: string[]; of_partition: number[] } | null;
  room?: { needed_bytes: number; cache_bytes: number; from_store_bytes_per_epoch: number; by_rows: boolean } | null;
  attached: number;
}

export interface PlacementExplained {
  run: string;
  plan: string;
  generation: number;
  epoch: number;
  partition_bytes: number;
  remote_bytes_per_epoch: number;
  remote_bytes_per_epoch_then: number;
  nodes: { node: string; hosts: number; room: number; ranks: number[]; is_live: boolean; draining?: Drain }[];
  partitions: unknown[];
  moves: Move[];
  waits?: 'no_ranks' | 'gathering' | 'copying';
}

export interface Move {
  partition: number;
  from: string;
  to: string;
  because: 'host_gone' | 'host_drains' | 'its_rank' | 'host_full' | 'even_shares';
  copied_bytes: number;
}

export interface AuditReport {
  rank: number;
  world: number;
  epoch: number;
  samples: number;
  digest_sum: string;
}

export interface Access {
  required: boolean;
  role: 'read' | 'write' | 'admin' | null;
  datasets: string[] | null;
}

export interface Change {
  kind: string;
  name: string;
  removed: boolean;
  revision: number;
}

export interface DatasetInfo {
  name: string;
  version: string;
  commit?: string;
  commits?: number;
  samples?: number;
  bytes?: number;
  shards?: number;
  committed_at?: Seconds;
}

export interface LogEntry {
  id: string;
  version: string;
  number: number;
  time: Seconds;
  operation: string;
  message?: string;
  samples: number;
  bytes: number;
  shards: number;
}

export interface TagInfo {
  tag: string;
  version: string;
  tagged_at?: Seconds;
}

export interface PlanInfo {
  id: string;
  version: string;
  created: Seconds;
}

/** What a plan would cost: a part of the report of client/simulation. */
export interface Simulation {
  report: {
    samples: number;
    row_bytes: number;
    partitions: number;
    grain_rows: number;
    grains: number;
    virtual_ranks: number;
    global_batch_size: number;
    steps_per_epoch: number;
    summary: {
      counted_epochs: number;
      epochs: number;
      moved_share: number;
      exchanged_bytes: number;
      largest_node_bytes: number;
      remote_read_bytes: number;
      most_peers: number;
      peak_node_bytes: number;
      slowest_exchange_seconds: number;
      hiding_step_seconds: number;
      hidden_share?: number;
      exposed_seconds?: number;
    };
    epochs: EpochReport[];
    nodes: { node: number; partitions: number; held_bytes: number; sent_bytes: number; received_bytes: number; most_peers: number; peak_bytes: number }[];
  };
  matrix?: MixingMatrix;
  labels?: { kinds: number; skew: number[]; floor: number; begins_with: number; in_micro_batch: number; in_micro_batch_of_all: number };
}

export interface EpochReport {
  epoch: number;
  nodes: number;
  /** Whether its exchange was counted, move by move. */
  is_counted: boolean;
  exchanged_bytes: number;
  predicted_exchanged_bytes: number;
  home_share: { predicted: number; counted: number; of_grains: number } | null;
}

/** Shares of the grains of a partition, or of a group of them, by where they began. */
export interface MixingMatrix {
  epoch: number;
  partitions: number;
  rows: number[][];
  of_grains: number;
}

export interface LabelCount {
  label: string;
  class?: string;
  samples: number;
}

export interface ColumnSummary {
  name: string;
  type: string;
  nullable: boolean;
  present?: number;
  spread?: { of: 'values' | 'lengths'; min: number; max: number; mean: number; variance: number };
}

export interface VersionSummary {
  version: string;
  samples: number;
  bytes: number;
  row_bytes: number;
  shards: number;
  /** If it is known. */
  inputs?: number;
  skipped: { count: number; first: { name: string; reason: string }[] };
  columns: ColumnSummary[];
  label_column?: string;
  labels?: { distinct: number; most: LabelCount[] };
  row_lengths?: { min: number; p25: number; p50: number; p75: number; p99: number; max: number };
  /** How samples were laid into shards. */
  config: unknown;
  /** The settings of the ingest, if they are known. */
  settings?: unknown;
}

export interface ShardRow {
  index: number;
  id: string;
  first: number;
  samples: number;
  bytes: number;
  labels?: LabelCount[];
}

/** A number that JSON has, or the text of one that it lacks. */
export type JsonNumber = number | string | null;

export type SampleValue =
  | null
  | { kind: 'number'; value: number | string; class?: string }
  | { kind: 'bool'; value: boolean }
  | { kind: 'text'; text: string; length: number }
  | { kind: 'media'; media_type: string; length: number }
  | { kind: 'bytes'; hex: string; length: number }
  | { kind: 'list'; type: string; length: number; values: JsonNumber[] }
  | { kind: 'nested'; json: unknown; is_cut: boolean }
  | { kind: 'time'; text: string };

export interface SampleRow {
  sample: number;
  shard: string;
  row: number;
  digest: string;
  values: SampleValue[];
}

export interface SampleRows {
  total: number;
  rows: SampleRow[];
}

/** Where a sample is in an epoch. */
export interface Found {
  epoch: number;
  position: number;
  partition: number;
  virtual_rank?: number;
  sample: number;
}

/** How much of something two versions share, and what only the one or the other has. */
export interface Counted {
  kept: number;
  added: number;
  removed: number;
}

export type SchemaChange =
  | { change: 'added' | 'removed'; column: string; data_type: string }
  | { change: 'type'; column: string; from: string; to: string }
  | { change: 'nullable'; column: string; nullable: boolean }
  | { change: 'metadata'; column: string; key: string; from: string | null; to: string | null }
  | { change: 'order'; from: string[]; to: string[] };

export interface DiffSide {
  version: string;
  samples: number;
  shards: number;
  bytes: number;
}

export interface LabelDrift {
  label: string;
  class?: string;
  old: number;
  new: number;
}

export interface Numbers {
  count: number;
  min: number | null;
  max: number | null;
  mean: number | null;
  deviation: number | null;
}

export interface ColumnDrift {
  column: string;
  measured: string;
  old: Numbers;
  new: Numbers;
  difference: number | null;
}

export interface DriftRows {
  labels?: LabelDrift[];
  more_labels?: number;
  label_distance?: number;
  row_bytes?: Record<string, number>[];
  columns?: ColumnDrift[];
  more_columns?: number;
}

/** Why samples were not compared. */
export type LeftOut = 'rows' | 'shards' | 'time';

export interface VersionDiff {
  old: DiffSide;
  new: DiffSide;
  same?: boolean;
  diff: { schema: SchemaChange[]; shards: Counted; samples?: Counted; inputs?: Counted; same_order?: boolean; left_out?: LeftOut };
  more_schema?: number;
  stats?: DriftRows;
}

export interface LabelOfVersion {
  label: string;
  class?: string;
  samples: number;
  share: number;
}

export interface PartitionLabels {
  partition: number;
  samples: number;
  counts: number[];
  others: number;
  is_exact: boolean;
  distance: number;
}

/** The labels of a plan's partitions in an epoch. */
export interface PlanLabels {
  version: string;
  epoch: number;
  partitions: number;
  labels: LabelOfVersion[];
  others?: { labels: number; samples: number; share: number };
  rows: PartitionLabels[];
  is_exact: boolean;
  is_in_input_order: boolean;
  mean_distance: number;
  floor: number;
}
