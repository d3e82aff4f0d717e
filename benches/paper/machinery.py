"""Tables and plots of the systems half, from the lines of benches/paper/systems. Opens no files."""

import statistics
from collections import defaultdict

from setting import QS
from svg import COLOURS, Plot
from text import filled

MIB = 1 << 20
# (name, the part of an epoch). Waiting for rows is for the exchange where nodes say that a loader waited for
# it.
STACK = ["I/O", "EXCHANGE", "FW+BW", "GE+WU"]


def parts(epoch):
    """Where the time of an epoch went, as the trainers say: four parts, whose sum benches/paper/systems compares with the wall time."""
    exchange = min(epoch["wait_s"], epoch["stalled_s"])
    return [epoch["wait_s"] - exchange + epoch["decode_s"], exchange, epoch["compute_s"], epoch["update_s"]]


def middle(epochs):
    """The epoch with the median wall time; of two, the shorter."""
    return sorted(epochs, key=lambda epoch: epoch["wall_s"])[(len(epochs) - 1) // 2]


class Measured:
    def __init__(self, lines):
        self.by = defaultdict(list)
        for line in sorted(lines, key=lambda line: line["round"]):
            self.by[line["mode"], line["q"], line["steps"]].append(line)

    def of(self, mode, q, steps=50):
        return self.by[mode, q, steps]

    @staticmethod
    def later(lines):
        """All epochs but the first, in which caches fill."""
        return [epoch for line in lines for epoch in line["epochs"][1:]]

    def ways(self):
        """(name, epochs) of every way to feed the trainers."""
        first = [line["epochs"][0] for q in QS for line in self.of("exchange", q)]
        yield "from the store, each shard once", first
        yield "from the store, a replica each", [line["epochs"][0] for line in self.of("replica", "1")]
        yield "replicas, filled", self.later(self.of("replica", "1"))
        for q in QS:
            yield f"Q = {q.replace(',', ', then ')}", self.later(self.of("exchange", q))


def tables(lines, table):
    if not lines:
        return {}
    measured = Measured(lines)
    made = {"feeding": feeding, "processor": processor}
    return {name: make(measured, table) for name, make in made.items()}


def feeding(measured, table):
    rows = []
    for name, epochs in measured.ways():
        if not epochs:
            continue
        times = [epoch["wall_s"] for epoch in epochs]
        epoch = middle(epochs)
        of_middle = parts(epoch)
        cells = [f"{value:.2f}" for value in [*of_middle, sum(of_middle)]]
        origin, moved = (statistics.mean(epoch[key] for epoch in epochs) / MIB for key in ("origin_bytes", "exchange_bytes"))
        rows.append([name, f"{epoch['wall_s']:.2f}", f"{min(times):.2f} to {max(times):.2f}", *cells, f"{origin:.1f}", f"{moved:.2f}", str(len(epochs))])
    head = ["", "median wall, s", "all epochs", *STACK, "sum", "from the store, MiB", "exchanged, MiB", "epochs"]
    digests = {line["weights_digest"] for mode in ("exchange", "replica") for line in measured.of(mode, "1")}
    same = "the same weights" if len(digests) == 1 else "**different weights**"
    every = [epoch for of_one in measured.by.values() for line in of_one for epoch in line["epochs"]]
    gap = max(abs(sum(parts(epoch)) / epoch["wall_s"] - 1) for epoch in every)
    loads = [line["load"] for of_one in measured.by.values() for line in of_one]
    return table(head, rows) + filled(
        f"Over all {len(every)} epochs, the sum of the parts differs from the wall time by at most {100 * gap:.1f} %. Load of the "
        f"machine: {min(loads):.0f} to {max(loads):.0f}. Replicas and four nodes at Q = 1, of one plan, ended with {same}."
    )


def processor(measured, table):
    """Seconds of processors in whole trainings; what nodes need beyond Q = 0 is the exchange's."""
    rows = []
    at_rest = statistics.median(line["nodes_cpu_s"] for line in measured.of("exchange", "0"))
    for q in QS:
        lines = measured.of("exchange", q)
        nodes, trainers = (statistics.median(line[key] for line in lines) for key in ("nodes_cpu_s", "trainers_cpu_s"))
        moved = statistics.mean(sum(epoch["exchange_bytes"] for epoch in line["epochs"]) for line in lines) / MIB
        share = 100 * max(0.0, nodes - at_rest) / trainers
        rows.append([q.replace(",", ", then "), f"{moved:.1f}", f"{trainers:.1f}", f"{nodes:.2f}", f"{share:.0f} %", str(len(lines))])
    return table(["Q", "exchanged, MiB", "trainers, s", "nodes, s", "exchange of trainers", "trainings"], rows, 0)


def plots(lines):
    if not lines:
        return {}
    measured = Measured(lines)
    return {"epochs.svg": stacked(measured)}


def stacked(measured):
    short = ["store", "store, replicas", "replicas", *(f"Q = {q}" for q in QS)]
    ways = [(name, parts(middle(epochs))) for name, (_, epochs) in zip(short, measured.ways()) if epochs]
    return stacks("median epoch", ways, "", 860)


def stacks(title, ways, label, width):
    plot = Plot([title], "seconds", (0, rounded(max(sum(values) for _, values in ways))), width=width)
    plot.categories(0, [name for name, _ in ways], label)
    for index, (_, values) in enumerate(ways):
        start = 0
        for value, colour in zip(values, COLOURS):
            plot.bar(plot.at(0, index, len(ways)), 48, start, value, colour)
            start += value
    plot.legend(list(zip(STACK, COLOURS)))
    return plot.written()


def rounded(value):
    """A round number above it, for an axis of five ticks."""
    step = 1.0
    while step * 5 < value:
        step += 1
    return step * 5
