"""The tables of docs/TRAINER.md, from the lines that benches/paper/trainer left. Opens no files."""

import statistics
from dataclasses import replace

from text import counted_difference, filled, spread, table
from trainer_cells import BATCHES, LARS_RATES, LONG_SUMS, LONG, QS, REMEDIES, SCALINGS, SUMS, WARM_UPS, compressed, lars, remedy, scaled, training_of


NONE = "–"  # in the place of a cell that no line is about


class Trainings:
    def __init__(self, lines):
        self.lines = {training_of(line): line for line in lines}
        self.seeds = max((training.seed for training in self.lines), default=-1) + 1

    def of(self, training):
        """Its lines, by seed."""
        found = {seed: self.lines.get(replace(training, seed=seed)) for seed in range(self.seeds)}
        return {seed: line for seed, line in found.items() if line}

    def accuracy(self, training):
        values = [100 * line["test_accuracy"] for line in self.of(training).values()]
        if not values:
            return NONE
        deviation = f" ± {spread(values):.1f}" if len(values) > 1 else ""
        return f"**{statistics.mean(values):.1f}**{deviation} ({len(values)})"

    def gap(self, training, base):
        """In points, between trainings of the same seed."""
        bases = self.of(base)
        pairs = [(line, bases[seed]) for seed, line in self.of(training).items() if seed in bases]
        return counted_difference([100 * (line["test_accuracy"] - other["test_accuracy"]) for line, other in pairs])


def scaling(trainings):
    rows = []
    for batch in BATCHES:
        for rule in ("none",) if batch == 256 else SCALINGS:
            cells = [scaled(batch, rule, warm_up) for warm_up in WARM_UPS]
            rate = cells[0].rate * {"none": 1, "sqrt": (batch / 256) ** 0.5, "linear": batch / 256}[rule]
            rows.append([f"{batch:,}", "sgd", f"`{rule}`", f"{rate:.3g}", *map(trainings.accuracy, cells)])
        if batch in LARS_RATES:
            rows.append([f"{batch:,}", "lars", "`none`", f"{LARS_RATES[batch]:g}", NONE, trainings.accuracy(lars(batch))])
    head = ["step", "optimizer", "`--lr-scaling`", "rate", *(f"warm-up of {it} epochs" if it else "no warm-up" for it in WARM_UPS)]
    return table(head, [row for row in rows if {*row[4:]} != {NONE}], 3)


def norm(trainings):
    rows = [[name, *(trainings.accuracy(remedy(q, **settings)) for q in QS)] for name, settings in REMEDIES]
    rows = [row for row in rows if {*row[1:]} != {NONE}]
    return table(["", *("uniform order" if q == "global" else f"sorted, Q = {q}" for q in QS)], rows)


def compress(trainings):
    """The trainings of 40 epochs have columns once there are any."""
    lengths = [10, *([LONG] if any(training.epochs == LONG for training in trainings.lines) else [])]
    rows = []
    for sums, rate in SUMS:
        sizes = [line for line in trainings.of(compressed(sums, rate)).values() if "sent_bytes" in line]
        less = f"{statistics.mean(line['plain_bytes'] / line['sent_bytes'] for line in sizes):.1f}" if sizes else "1"
        row = ["(exact)" if sums == "exact" else sums, f"{rate:g}", less]
        for epochs in lengths:
            cell, base = compressed(sums, rate, epochs), compressed("exact", 0.05, epochs)
            is_trained = epochs != LONG or (sums, rate) in LONG_SUMS
            row += [trainings.accuracy(cell), "" if cell == base else trainings.gap(cell, base)] if is_trained else ["", ""]
        rows.append(row)
    heads = [head for epochs in lengths for head in (f"{epochs} epochs", "to exact")]
    return table(["`--compress`", "rate", "times less", *heads], rows, 1)


def tables(lines):
    if not lines:
        return {}
    trainings = Trainings(lines)
    seconds = sum(line["cpu_s"] for line in lines)
    counted = filled(
        f"The cells of this table, and of those about rates and compressed gradients, are the mean accuracy of the test images in percent, "
        f"the standard deviation, and in brackets the number of seeds. In all there are {len(lines)} trainings of {seconds / len(lines):.0f} s "
        "of processor time."
    ).lstrip("\n")
    made = {"scaling": scaling, "norms": norm, "compressed": compress}
    return {"trained": counted, **{name: make(trainings) for name, make in made.items()}}
