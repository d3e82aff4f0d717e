"""The training: the cells of the experiment, and how each is asked of the programs. Knows no files and starts
nothing.

A cell is one training: P partitions, Q, where samples begin, how those that leave are selected, V virtual ranks, a seed.
"""

from dataclasses import asdict, dataclass

CELLS = ["judged", "all", "grains", "ranks", "schedules", "many", "smoke"]
EPOCHS, WARM_UP, SEEDS = 10, 2, 5
# By number of partitions: samples of each in a step, highest learning rate. Steps of 1,024 samples at P=64 and of 512 at 16.
RATES = {16: (32, 0.2), 64: (16, 0.3), 1024: (4, 0.6)}
GENTLER = 0.2  # than the setting for P=64
MANY_RATES = (0.3, 0.0)  # for P=1024, where nothing is set; 0 is the above
# Part of CIFAR-10, and how many of each class; the training set, by number of partitions.
DATASETS = {"train": ("train", 1280), "train-all": ("train", 5000), "test": ("test", 1000)}
TRAIN = {16: "train", 64: "train", 1024: "train-all"}
QS = ["0", "0.01", "0.1", "0.3", "1", "1,0.01"]
# Beside the cells above: samples that move together, micro-batches of a step for P=64, and shares of the first epochs.
GRAINS, GRAIN_QS = (2, 4, 8, 16), ("0.1", "0.3")
RANKS, RANK_QS = (4, 8, 16, 32), ("0", "0.1")
SCHEDULES = ("0.5", "0.5,0.01", "0.3,0.01", "0.5,0.1", "0.3,0.1")


@dataclass(frozen=True)
class Cell:
    partitions: int
    virtual_ranks: int
    data: str  # sorted, iid, global
    q: str
    selection: str  # cyclic, independent
    seed: int
    rate: float = 0.0  # highest learning rate; 0 is that of the setting
    grain_rows: int = 1  # samples that move together

    @property
    def name(self):
        """What the cell is called in files: the same for all who ask."""
        q = "" if self.data == "global" else f"-q{self.q.replace(',', '_')}-{self.selection}"
        rate = f"-lr{self.rate}" if self.rate else ""
        grain = f"-g{self.grain_rows}" if self.grain_rows > 1 else ""
        return f"p{self.partitions}-v{self.virtual_ranks}-{self.data}{q}{rate}{grain}-s{self.seed}"

    @property
    def dataset(self):
        return TRAIN[self.partitions]

    @property
    def step(self):
        """Samples of a step: the same for any V, so that the steps are the same sets."""
        return self.partitions * RATES[self.partitions][0]

    def partition(self):
        """Arguments of `shardctl partition`. A global shuffle is the uniform one of PLAN.md, law 6: every epoch a new
        uniform placement (all of it exchanged, in one chunk), each partition in a uniform order."""
        uniform = ["--chunks", "1"] if self.data == "global" else []
        return [
            *["--q", self.q, "--partitions", str(self.partitions)],
            *["--grain-rows", str(self.grain_rows), "--seed", str(self.seed)],
            *["--selection", self.selection, "--placement", "shards" if self.data == "sorted" else "random", *uniform],
        ]

    def train(self):
        """Arguments of `shardtrain`, without where the data is."""
        return [
            *["--virtual-ranks", str(self.virtual_ranks), "--batch-size", str(self.step // self.virtual_ranks)],
            *["--lr", str(self.rate or RATES[self.partitions][1]), "--momentum", "0.9", "--weight-decay", "0.0005"],
            *["--epochs", str(EPOCHS), "--warmup-epochs", str(WARM_UP), "--seed", str(self.seed)],
        ]

    def fields(self):
        return asdict(self)


def whole(partitions, seed, virtual_ranks=None, rate=0.0):
    """The global shuffle that others are compared with."""
    return Cell(partitions, virtual_ranks or partitions, "global", "1", "independent", seed, rate)


def judged(seed):
    """The cells that the verdict rests on."""
    for p in (16, 64):
        yield whole(p, seed)
        # Nothing is selected at Q = 0: one selection says all.
        yield from (Cell(p, p, "sorted", q, "independent", seed) for q in ("0", "0.1", "0.3"))
        yield Cell(p, p, "iid", "0", "independent", seed)
    yield Cell(64, 4, "sorted", "0", "independent", seed)


def cells(which):
    """In the order in which they are trained: what matters most first, seed by seed, so that any beginning has its pairs."""
    if which == "smoke":
        return [whole(16, 0), Cell(16, 16, "sorted", "0", "independent", 0)]
    if which == "many":
        kinds = [whole, *(lambda p, seed, v, rate, q=q: many(q, seed, rate) for q in ("0", "0.1", "1"))]
        return [kind(1024, seed, 1024, rate) for seed in range(SEEDS) for rate in MANY_RATES for kind in kinds]
    if which == "grains":
        return [grains(p, rows, q, seed) for seed in range(SEEDS) for p in (16, 64) for rows in GRAINS for q in GRAIN_QS]
    if which == "ranks":
        return [cell for seed in range(SEEDS) for v in RANKS for cell in (whole(64, seed, v), *(ranks(v, q, seed) for q in RANK_QS))]
    if which == "schedules":
        return [Cell(p, p, "sorted", q, "cyclic", seed) for seed in range(SEEDS) for p in (16, 64) for q in SCHEDULES]
    chosen = [cell for seed in range(SEEDS) for cell in judged(seed)]
    if which == "all":
        gentler = [
            cell
            for seed in range(SEEDS)
            for cell in (
                whole(64, seed, rate=GENTLER),
                Cell(64, 64, "sorted", "0.1", "independent", seed, GENTLER),
            )
        ]
        turns = [Cell(p, p, "sorted", q, "cyclic", seed) for seed in range(SEEDS) for p in (16, 64) for q in ("0.1", "0.3")]
        rest = [
            Cell(p, p, data, q, selection, seed)
            for seed in range(SEEDS)
            for data in ("sorted", "iid")
            for selection in ("independent", "cyclic")
            for q in ("1", "0.01", "1,0.01", "0.1", "0.3")
            for p in (16, 64)
        ]
        four = [whole(64, seed, 4) for seed in range(SEEDS)]
        chosen = list(dict.fromkeys([*chosen, *gentler, *turns[:12], *rest, *four, *turns]))
    return chosen


def ranks(virtual_ranks, q, seed):
    """Sorted partitions, several of which feed a micro-batch."""
    return Cell(64, virtual_ranks, "sorted", q, "independent" if q == "0" else "cyclic", seed)


def grains(partitions, rows, q, seed):
    """Sorted partitions, of which several samples move together."""
    return Cell(partitions, partitions, "sorted", q, "cyclic", seed, grain_rows=rows)


def many(q, seed, rate):
    """1,024 partitions of 48 or 49 samples."""
    return Cell(1024, 1024, "sorted", q, "independent", seed, rate)
