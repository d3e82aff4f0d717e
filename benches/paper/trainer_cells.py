"""The trainings of benches/paper/trainer: the settings of each, the studies that they are part of, and the arguments by which programs
take them. Opens no files."""

from dataclasses import asdict, dataclass, replace

SEEDS = 5
MICRO_BATCH = 32


@dataclass(frozen=True)
class Training:
    """One training on the 12,800 images of benches/paper/data.py."""

    study: str
    batch: int = 128  # samples of a step
    virtual_ranks: int = 4
    ranks: int = 1
    partitions: int = 128
    q: str = "global"  # a uniform shuffle of each epoch, or the Q of partitions that are sorted by class
    optimizer: str = "sgd"
    rate: float = 0.1
    scaling: str = "none"  # of the rate, with the batch
    warm_up: int = 2  # epochs
    norm: str = "batch"
    sums: str = "exact"  # or the `--compress` of `--reduce fast`
    augment: bool = False
    epochs: int = 10
    seed: int = 0

    def line(self):
        """Its settings, without those that are the defaults."""
        return {name: value for name, value in asdict(self).items() if value != getattr(Training, name, None)}

    @property
    def name(self):
        settings = [f"{name} {value}" for name, value in self.line().items() if name not in ("study", "seed")]
        return f"{self.study}: {', '.join(settings)}, seed {self.seed}"

    def partition(self):
        """Arguments of `shardctl partition`: as in setting.py, a uniform placement is one chunk with all of Q = 1."""
        whole = self.q == "global"
        order = ["--q", "1" if whole else self.q, "--placement", "random" if whole else "shards", *(["--chunks", "1"] if whole else [])]
        return ["--partitions", str(self.partitions), "--grain-rows", "1", "--seed", str(self.seed), "--selection", "independent", *order]

    def train(self):
        """Arguments of `shardtrain`, without those of the data and of ranks."""
        sums = ["--reduce", "exact"] if self.sums == "exact" else ["--reduce", "fast", "--compress", self.sums]
        return [
            *["--global-batch-size", str(self.batch), "--virtual-ranks", str(self.virtual_ranks), "--norm", self.norm, *sums],
            *["--optimizer", self.optimizer, "--lr", str(self.rate), "--lr-scaling", self.scaling, "--lr-samples", "256"],
            *["--momentum", "0.9", "--weight-decay", "0.0005", *(["--augment"] if self.augment else [])],
            *["--epochs", str(self.epochs), "--warmup-epochs", str(self.warm_up), "--seed", str(self.seed)],
        ]


def training_of(line):
    return Training(**{name: line[name] for name in Training.__dataclass_fields__ if name in line})


# Samples of a step. Each virtual rank has 32 of them, as each worker has in Goyal et al. (2017).
BATCHES = (128, 256, 1024, 4096)
SCALINGS = ("none", "sqrt", "linear")
WARM_UPS = (0, 3)
LARS_RATES = {1024: 16.0, 4096: 8.0}  # the best of 4, 8, 16 and of 8, 16, 32 for seed 9, which is in no table


def scaled(batch, scaling, warm_up, **settings):
    return Training("scaling", batch, batch // MICRO_BATCH, scaling=scaling, warm_up=warm_up, **settings)


def lars(batch):
    return scaled(batch, "none", 3, optimizer="lars", rate=LARS_RATES[batch])


def scaling():
    """The rate for steps of 256 samples, at steps of other sizes."""
    for batch in BATCHES:
        for rule in ("none",) if batch == 256 else SCALINGS:
            for warm_up in WARM_UPS:
                yield scaled(batch, rule, warm_up)
    for batch in LARS_RATES:
        yield lars(batch)


QS = ("0", "0.1", "global")
# Name, and what differs from batch normalisation by each of 16 virtual ranks.
REMEDIES = [
    ("`--norm batch`, V = 16", {}),
    ("`--norm batch`, V = 4", {"virtual_ranks": 4}),
    ("`--norm sync`, V = 16", {"norm": "sync"}),
    ("`--norm group`, V = 16", {"norm": "group"}),
]


def remedy(q, **settings):
    """The cell of setting.py with 16 partitions: steps of 512 samples, 32 of each partition."""
    base = Training("norm", 512, 16, partitions=16, rate=0.2, q=q)
    return replace(base, **settings)


def norm():
    for _, settings in REMEDIES:
        for q in QS:
            yield remedy(q, **settings)


# `--compress` and the rate. Deep gradient compression clears the momentum of a number that it sends: it bears a higher rate.
SUMS = [
    ("exact", 0.05),
    ("bf16", 0.05),
    ("fp16", 0.05),
    ("int8", 0.05),
    ("1bit", 0.05),
    ("topk:0.001", 0.05),
    ("dgc:0.01", 0.05),
    ("dgc:0.001", 0.05),
    ("dgc:0.001", 0.1),
]
# Four times as long, and with `--augment`: without it the network learns the images by heart.
LONG = 40
LONG_SUMS = [("exact", 0.05), ("dgc:0.01", 0.05), ("dgc:0.001", 0.05), ("dgc:0.001", 0.1)]


def compressed(sums, rate, epochs=10):
    return Training("long" if epochs == LONG else "compress", 128, 4, ranks=4, rate=rate, sums=sums, epochs=epochs, augment=epochs == LONG)


def compress():
    for sums, rate in SUMS:
        yield compressed(sums, rate)


def long():
    for sums, rate in LONG_SUMS:
        yield compressed(sums, rate, LONG)


STUDIES = {"norm": norm, "compress": compress, "scaling": scaling, "long": long}


def trainings(names, seeds):
    """Seed by seed, so that any beginning has its pairs."""
    return [replace(training, seed=seed) for seed in range(seeds) for name in names for training in STUDIES[name]()]
