"""The tables of docs/PAPER.md about causes, from the lines that benches/paper/causes/run left."""

from dataclasses import replace

from causes.cells import AT, ITSELF, UNIFORM, Cell, cell_of
from text import counted_difference, q_name, table

BASES = {"P = V = 16": AT[16], "P = V = 64": AT[64], "P = 96, V = 16": ITSELF}
QS = ("0", "0.01", "0.1", "0.3", "1,0.01")


class Causes:
    def __init__(self, lines):
        self.accuracy = {}
        for line in lines:
            self.accuracy[replace(cell_of(line), study="")] = 100 * line["test_accuracy"]
        self.seeds = max((cell.seed for cell in self.accuracy), default=-1) + 1

    def gaps(self, **settings):
        """To the global shuffle of the same shapes, in points, by seed."""
        found = []
        for seed in range(self.seeds):
            cell = Cell("", **(settings | dict(seed=seed)))
            whole = replace(cell, **UNIFORM, grain=1, stratified=False)
            if cell in self.accuracy and whole in self.accuracy:
                found.append(self.accuracy[cell] - self.accuracy[whole])
        return found


def by_q(causes, rows, qs=QS):
    """A row for each name and settings, a column for each Q."""
    return [[name, *(counted_difference(causes.gaps(**(settings | dict(q=q)))) for q in qs)] for name, settings in rows]


def heads(qs=QS):
    return [f"Q = {q_name(q)}" for q in qs]


def tables(lines):
    causes = Causes(lines)
    norms = {"batch": "micro-batch of a virtual rank", "sync": "all of a step", "group": "single samples (groups of channels)"}
    qs = ("0", "0.01", "0.1", "1,0.01")
    normalised = [(f"{base}, over {norms[norm]}", settings | dict(norm=norm)) for base, settings in BASES.items() for norm in norms]
    placed = []
    for base, settings in BASES.items():
        placed.append((f"{base}, neighbours together", settings))
        placed.append((f"{base}, `--placement random`", settings | dict(placement="random")))
        placed.append((f"{base}, `--stratify label`", settings | dict(stratified=True)))
    ranks = [
        (f"P = {p}, V = {v}", AT[p] | dict(virtual_ranks=v)) for p in (16, 64) for v in (1, 2, 4, 8, 16, 32, 64) if v <= p
    ]
    schedules = ("0.1", "0.2", "0.3", "0.5", "1", "1,0", "1,0.01", "0.5,0.01", "0.3,0.01", "0.5,0.1", "0.3,0.1", "0,1,0.01")
    rows = [
        [q.replace(",", ", "), *(counted_difference(causes.gaps(**(settings | dict(q=q)))) for settings in BASES.values())] for q in schedules
    ]
    rates = [
        (f"{base}, rate {settings['rate'] * factor:g}", settings | dict(rate=settings["rate"] * factor))
        for base, settings in BASES.items()
        for factor in (0.125, 0.25, 0.5, 1, 1.5, 2)
    ]
    epochs = [
        (f"{base}, {count} epochs", settings | dict(epochs=count)) for base, settings in BASES.items() for count in (5, 10, 20, 40)
    ]
    grains = [(f"{base}, {grain} samples", settings | dict(grain=grain)) for base, settings in BASES.items() for grain in (1, 2, 4, 8, 16)]
    partitions = [
        (f"P = V = {p}", dict(partitions=p, virtual_ranks=p, step=1024, rate=0.2)) for p in (4, 8, 16, 32, 64, 128, 256)
    ]
    whole = []
    for base, settings in BASES.items():
        for placement, selection, chunks in (("shards", "cyclic", 16), ("shards", "cyclic", 1), ("shards", "independent", 1), ("random", "cyclic", 16)):
            gaps = causes.gaps(**(settings | dict(q="1", placement=placement, selection=selection, chunks=chunks)))
            whole.append([base, placement, selection, str(chunks), counted_difference(gaps)])
    few = ("0", "0.1", "1,0.01")
    return {
        "norm": table(["normalised", *heads(qs)], by_q(causes, normalised, qs)),
        "placed": table(["", *heads(("0", "0.01", "0.1"))], by_q(causes, placed, ("0", "0.01", "0.1"))),
        "ranks": table(["", *heads()], by_q(causes, ranks)),
        "schedules": table(["`--q`", *BASES], rows),
        "rates": table(["", *heads(few)], by_q(causes, rates, few)),
        "epochs": table(["", *heads(few)], by_q(causes, epochs, few)),
        "grains": table(["", *heads(("0.1", "0.3", "1,0.01"))], by_q(causes, grains, ("0.1", "0.3", "1,0.01"))),
        "partitions": table(["", *heads(("0", "0.1", "0.3", "1,0.01"))], by_q(causes, partitions, ("0", "0.1", "0.3", "1,0.01"))),
        "whole": table(["Q = 1", "placement", "selection", "chunks", "difference"], whole, 4),
        "caused": f"{len(causes.accuracy):,} trainings with {causes.seeds} seeds.\n",
    }
