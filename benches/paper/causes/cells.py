"""The trainings: what each is, which there are, and how a line of results names one."""

import itertools
import json
from dataclasses import asdict, dataclass, replace

ORDER = ("partitions", "q", "selection", "placement", "grain", "chunks", "stratified", "seed", "epochs")
SHAPE = ("virtual_ranks", "step", "norm", "epochs")


@dataclass(frozen=True)
class Cell:
    """One training."""

    study: str
    partitions: int = 16
    virtual_ranks: int = 16
    step: int = 512
    q: str = "0.1"
    selection: str = "cyclic"
    placement: str = "shards"
    grain: int = 1
    chunks: int = 16
    stratified: bool = False
    norm: str = "batch"
    rate: float = 0.2
    epochs: int = 10
    seed: int = 0

    def line(self):
        """What distinguishes it, without the settings that are as above."""
        return {name: value for name, value in asdict(self).items() if value != getattr(Cell, name, None)}

    def key(self):
        return json.dumps(asdict(replace(self, study="")), sort_keys=True)

    def order(self):
        return tuple(getattr(self, name) for name in ORDER)

    def shape(self):
        return tuple(getattr(self, name) for name in SHAPE)


AT = {16: dict(partitions=16, virtual_ranks=16, step=512, rate=0.2), 64: dict(partitions=64, virtual_ranks=64, step=1024, rate=0.3)}
UNIFORM = dict(q="1", selection="independent", placement="random", chunks=1)
ITSELF = dict(partitions=96, virtual_ranks=16, step=256, rate=0.1)  # what `partition` and `shardtrain` choose for a batch of 256


def studies():
    """Name and cell of everything that is trained, without seeds. Each has its global shuffle: same shapes, uniform order."""
    def both(study, base, **changes):
        yield Cell(study, **(base | UNIFORM))
        yield Cell(study, **(base | changes))

    for base in (*AT.values(), ITSELF):
        for q in ("0", "0.01", "0.03", "0.1", "0.2", "0.3", "0.5", "1", "1,0.01", "1,0"):
            for selection, placement in itertools.product(("cyclic", "independent"), ("shards", "random")):
                yield from both("q", base, q=q, selection=selection, placement=placement)
        for q in ("0.5,0.01", "0.3,0.01", "0.5,0.1", "0.3,0.1", "0.3,0.3,0.1", "0.2,0.2,0.2,0.1", "0.2,0.2,0.2,0.2,0.2,0.01", "1,0.1", "0,1,0.01"):
            yield from both("schedule", base, q=q)
        for q, chunks, selection in itertools.product(("1", "0.1"), (1, 16), ("cyclic", "independent")):
            yield from both("chunks", base, q=q, chunks=chunks, selection=selection)
        for factor, q in itertools.product((0.125, 0.25, 0.5, 1, 1.5, 2), ("0", "0.1", "1,0.01")):
            yield from both("rate", base | dict(rate=base["rate"] * factor), q=q)
        for norm, q in itertools.product(("batch", "sync", "group"), ("0", "0.01", "0.1", "1,0.01")):
            yield from both("norm", base | dict(norm=norm), q=q)
        for grain, q in itertools.product((1, 2, 4, 8, 16), ("0.1", "0.3", "1,0.01")):
            if grain * base["partitions"] * 8 <= 12_800:
                yield from both("grain", base, q=q, grain=grain)
        for epochs, q in itertools.product((5, 10, 20, 40), ("0", "0.1", "1,0.01")):
            yield from both("epochs", base | dict(epochs=epochs), q=q)
        for q in ("0", "0.01", "0.1"):
            yield from both("stratified", base, q=q, stratified=True)
    for virtual, q in itertools.product((1, 2, 4, 8, 16, 32, 64), ("0", "0.01", "0.1", "0.3", "1,0.01")):
        yield from both("virtual ranks", AT[64] | dict(virtual_ranks=virtual), q=q)
        if virtual <= 16:
            yield from both("virtual ranks", AT[16] | dict(virtual_ranks=virtual), q=q)
    # As many partitions, the same steps: 1,024 samples, of each partition 1024/P.
    for partitions, q in itertools.product((4, 8, 16, 32, 64, 128, 256), ("0", "0.1", "0.3", "1,0.01")):
        yield from both("partitions", dict(partitions=partitions, virtual_ranks=partitions, step=1024, rate=0.2), q=q)


def cells(seeds, only):
    found = [replace(cell, seed=seed) for seed in range(seeds) for cell in studies() if not only or cell.study in only]
    return list({cell.key(): cell for cell in reversed(found)}.values())[::-1]


def cell_of(line):
    return Cell(**{name: line[name] for name in Cell.__dataclass_fields__ if name in line})


def lines_of(path):
    """The lines of a file of results."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
