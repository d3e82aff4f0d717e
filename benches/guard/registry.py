"""The benchmarks: what each measures, beside what, and how its figures read. Every figure is a ratio to a yardstick that the
same process measures in turns with it, so that machines and minutes cancel out."""

from dataclasses import dataclass

TIMES = "times the yardstick's time"
SPEED = "of the yardstick's speed"


@dataclass(frozen=True)
class Benchmark:
    """A few seconds of `shardd-bench NAME`, which prints one line of JSON."""

    name: str
    what: str
    yardstick: str
    unit: str = TIMES
    better: str = "lower"
    # A change of a ratio that is no larger than this part counts as noise.
    effect: float = 0.05
    # For threads that wake one another: how long that takes between two processors is the machine's, and tens of
    # microseconds on some virtual ones.
    one_processor: bool = False


QUICK = [
    Benchmark("gather/784", "gathering 256 random rows of 784 B", "np.take-like copies into a buffer that stays"),
    Benchmark("gather/3072", "gathering 256 random rows of 3,072 B", "np.take-like copies into a buffer that stays"),
    Benchmark("verify/784", "verifying a grain of 16 rows of 800 B", "BLAKE3 of each row"),
    Benchmark("loading/epoch", "an epoch of 16,384 samples of 3,072 B through a loader", "copies of as many random rows in batches"),
    Benchmark("plan/order", "the order of 100,000 samples for an epoch", "a shuffle of as many numbers"),
    Benchmark("plan/lookup", "the sample at a position of epoch 5", "BLAKE3 of ten blocks of 64 B"),
    Benchmark("manifest/open", "opening a manifest of 20,000 shards and finding a sample", "reading the file"),
    Benchmark("manifest/decode", "decoding a manifest of 2,000 shards", "BLAKE3 of its bytes"),
    Benchmark("ingest/parquet", "ingest of 8 MB of Parquet on one thread", "read, BLAKE3, write, sync"),
    Benchmark("resume/table", "from opening a loader in the middle of 10⁷ samples to its first step", "reading a file as large as the slot table"),
    Benchmark("cache/hit", "reading a grain of 16 KiB from the cache", "reading as many bytes from a file"),
    Benchmark("cache/miss", "asking the cache for a grain that it lacks", "asking a hash map"),
    Benchmark("cache/open", "opening and stopping a cache of 50,000 grains", "reading and writing its index"),
    Benchmark("exchange/3072", "an exchange of 32 MiB between two processes", "a plain loop of QUIC, BLAKE3 and writes", effect=0.15),
    Benchmark("http/listing", "the listing of data sets over HTTP", "a socket that answers with the same bytes", effect=0.1, one_processor=True),
    Benchmark("engine/mlp", "a step of the trainer's engine, perceptron of 26 layers", "a step of a plain loop of burn"),
    Benchmark("overlap/buckets", "a step of two ranks on a link, in ten buckets", "a step of each rank alone"),
    Benchmark("zero/3", "the same in stage 3 of ZeRO", "a step of each rank alone"),
]

# What tests/run measures, and what `--self-check` compares: short ones, of every kind of work.
CHECKED = ["gather/784", "verify/784", "loading/epoch", "plan/order", "plan/lookup", "manifest/decode", "cache/hit", "http/listing", "engine/mlp"]
SELF_CHECKED = ["gather/784", "plan/lookup", "manifest/decode", "cache/hit", "engine/mlp"]
# The benchmark that the self-check slows, and by what part of its work.
SLOWED = ("gather/784", 0.25)


@dataclass(frozen=True)
class Bench:
    """A bench of `benches/benches` that takes minutes: it appends its rounds to the file of SHARDD_BENCH_FIGURES, under names
    that begin with its own."""

    target: str
    what: str
    yardstick: str
    unit: str = TIMES
    better: str = "lower"
    arguments: tuple = ()


FULL = [
    Bench("ratios", "the parts of moving a sample", "memcpy", SPEED, "higher"),
    Bench("ingest", "ingest of 1 GB of Parquet", "a plain loop of read, BLAKE3, write, sync"),
    Bench("exchange", "the exchange of 256 MB between two processes", "a plain loop of QUIC, BLAKE3 and writes", SPEED, "higher"),
    Bench("engine", "a step of the trainer's engine", "a step of a plain loop of burn"),
    Bench("loading", "an epoch of training with the loader", "the same epoch over tensors in memory"),
    Bench("overlap", "a step of two ranks on a link", "a step of each rank alone"),
    Bench("zero", "a step of a stage of ZeRO on two ranks", "a step of stage 0 on one rank"),
]
