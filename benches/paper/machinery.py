"""Tables and plots of the systems half, from the lines of benches/paper/systems. Opens no files."""

import statistics
from collections import defaultdict

from setting import QS
from svg import COLOURS, Plot

MIB = 1 << 20
# (name, what of an epoch it is). Waiting for rows is for the exchange as far as nodes say that a loader waited for it.
STACK = ["I/O", "EXCHANGE", "FW+BW", "GE+WU"]


def parts(epoch):
    """Where the time of an epoch went: four parts that add up to it."""
    exchange = min(epoch["wait_s"], epoch["stalled_s"])
    return [epoch["wait_s"] - exchange + epoch["decode_s"], exchange, epoch["compute_s"], epoch["update_s"]]


def mean_of(epochs):
    return [statistics.mean(values) for values in zip(*map(parts, epochs))]


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
        yield "from the store", first
        yield "replica at every process", self.later(self.of("replica", "1"))
        for q in QS:
            yield f"Q = {q.replace(',', ', then ')}", self.later(self.of("exchange", q))


def tables(lines, table):
    if not lines:
        return {}
    measured = Measured(lines)
    return {"feeding": feeding(measured, table), "hidden": hidden(measured, table)}


def feeding(measured, table):
    rows = []
    for name, epochs in measured.ways():
        if not epochs:
            continue
        times = [sum(parts(epoch)) for epoch in epochs]
        cells = [f"{value:.2f}" for value in mean_of(epochs)]
        origin, moved = (statistics.mean(epoch[key] for epoch in epochs) / MIB for key in ("origin_bytes", "exchange_bytes"))
        least = f"{min(times):.2f}"
        rows.append([name, f"{statistics.median(times):.2f}", least, *cells, f"{origin:.2f}", f"{moved:.2f}", str(len(epochs))])
    replica = measured.of("replica", "1")
    if replica:
        whole = statistics.mean(line["epochs"][0]["origin_bytes"] for line in replica) / MIB
        rows[1][0] += f" (once: {whole:.1f} MiB)"
    head = ["", "epoch s", "least", *STACK, "from the store, MiB", "exchanged, MiB", "epochs"]
    return table(head, rows)


def hidden(measured, table):
    rows = []
    for steps in sorted((key[2] for key in measured.by if key[0] == "steps"), reverse=True):
        lines = measured.of("steps", "0.1", steps)
        epochs = measured.later(lines)
        busy, seen = (sum(epoch[key] for epoch in epochs) / len(epochs) for key in ("exchange_s", "stalled_s"))
        exposed = sum(parts(epoch)[1] for epoch in epochs) / len(epochs)
        times = [sum(parts(epoch)) for epoch in epochs]
        share = f"{100 * max(0, 1 - exposed / busy):.1f} %" if busy else "–"
        rows.append([str(steps), f"{statistics.median(times):.2f}", f"{min(times):.2f}", f"{busy:.3f}", f"{exposed:.3f}", share])
    return table(["steps per epoch", "epoch s", "least", "exchanging, s", "not hidden, s", "hidden"], rows, 0)


def plots(lines):
    if not lines:
        return {}
    measured = Measured(lines)
    return {"epochs.svg": stacked(measured), "steps.svg": by_steps(measured)}


def stacked(measured):
    ways = [(name, mean_of(epochs)) for name, epochs in measured.ways() if epochs]
    top = max(sum(values) for _, values in ways)
    plot = Plot(["mean epoch"], "seconds", (0, rounded(top)), width=780)
    short = {"from the store": "store", "replica at every process": "replica"}
    plot.categories(0, [short.get(name, name) for name, _ in ways])
    for index, (_, values) in enumerate(ways):
        start = 0
        for value, colour in zip(values, COLOURS):
            plot.bar(plot.at(0, index, len(ways)), 48, start, value, colour)
            start += value
    plot.legend(list(zip(STACK, COLOURS)))
    return plot.written()


def by_steps(measured):
    counts = sorted((key[2] for key in measured.by if key[0] == "steps"), reverse=True)
    means = [mean_of(measured.later(measured.of("steps", "0.1", steps))) for steps in counts]
    plot = Plot(["mean epoch, Q = 0.1"], "seconds", (0, rounded(max(map(sum, means)))), width=520)
    plot.categories(0, [str(steps) for steps in counts], "steps per epoch")
    for index, values in enumerate(means):
        start = 0
        for value, colour in zip(values, COLOURS):
            plot.bar(plot.at(0, index, len(means)), 48, start, value, colour)
            start += value
    plot.legend(list(zip(STACK, COLOURS)))
    return plot.written()


def rounded(value):
    """A round number above it, for an axis of five ticks."""
    step = 1.0
    while step * 5 < value:
        step += 1
    return step * 5
