"""The table and the plot of benches/paper/hiding: the measured part of an exchange that hides, beside the closed form of
client/simulation/src/hiding.rs. Opens no files."""

import math
import re
import statistics
from collections import defaultdict

from svg import COLOURS, Plot
from text import filled

# Of the plot: the least and the largest exchange, in epochs of training, as powers of two.
LEAST, MOST = -7, 2
# Epochs without an exchange differ by as much: a shorter wait, in epochs of training, counts as none.
NOISE = 0.05


class ClosedForm:
    """What `Hiding` of client/simulation/src/hiding.rs computes, with the constants that stand there."""

    def __init__(self, source):
        constant = lambda pattern: float(re.search(pattern, source)[1])
        self.goodput = constant(r"const GOODPUT: f64 = ([\d.]+);")
        self.handling = constant(r"const HANDLING: Duration = Duration::from_millis\((\d+)\);") / 1000
        self.round_trips = constant(r"const ROUND_TRIPS: f64 = ([\d.]+);")
        self.headroom = constant(r"const HEADROOM: f64 = ([\d.]+);")
        self.window_tenths = int(constant(r"const WINDOW_TENTHS: u64 = (\d+);"))
        self.measured = constant(r"const MEASURED: f64 = ([\d.]+);")
        self.measured_steps = int(constant(r"const MEASURED_STEPS: u64 = (\d+);"))

    @staticmethod
    def planned_bytes(line):
        """A node's part of the exchange, in the mean."""
        nodes = line["nodes"]
        return float(line["q"]) * (1 - 1 / nodes) * line["samples"] * line["sample_bytes"] / nodes

    def link_s(self, line):
        """How long a node's link is busy with it."""
        return self.planned_bytes(line) * 8 / (line["mbit"] * 1e6) / self.goodput

    def exposed_s(self, line):
        """How long each epoch waits for it."""
        return self.exposed_by(line, self.link_s(line))

    def is_within_measured(self, line):
        """Whether the closed form hides an exchange with the margin, in an epoch that is long enough."""
        return line["steps"] >= self.measured_steps and self.exposed_by(line, self.link_s(line) / self.measured) == 0

    def exposed_by(self, line, link):
        chunks, steps, step = line["chunks"], line["steps"], line["step_ms"] / 1000
        latency = self.handling + self.round_trips * 2 * line["delay_ms"] / 1000
        sent_in = lambda chunk: max(0, -(-self.window_tenths * steps * chunk // (10 * chunks)) - 1)
        queued = max(link * (chunks - chunk) / chunks + sent_in(chunk) * step for chunk in range(chunks))
        last = sent_in(chunks - 1)
        paced = (last + max(0.0, self.window_tenths * steps / 10 - last) / self.headroom) * step
        return max(0.0, latency - steps * step + max(queued, paced))


class Measured:
    def __init__(self, line, form):
        self.line = line
        self.training_s = line["steps"] * line["step_ms"] / 1000
        self.planned_bytes, self.link_s = form.planned_bytes(line), form.link_s(line)
        self.predicted_s = form.exposed_s(line)
        # What the machine does besides makes epochs longer, and with few of them the mean is not of use.
        exposed = statistics.median(line["with_s"]) - statistics.median(line["without_s"])
        self.exposed_s = exposed if exposed > NOISE * self.training_s else 0.0

    def hidden(self, exposed):
        return max(0.0, min(1.0, 1 - exposed / self.link_s))


def of_cells(lines, form):
    """By (rate, delay, Q): by steps."""
    found = defaultdict(dict)
    for line in lines:
        found[line["mbit"], line["delay_ms"], float(line["q"])][line["steps"]] = Measured(line, form)
    return found


def tables(lines, form, table):
    if not lines:
        return {}
    cells = of_cells(lines, form)
    counts = sorted({line["steps"] for line in lines}, reverse=True)
    rows = []
    for (mbit, delay, q), by_steps in sorted(cells.items(), key=lambda cell: (cell[0][1], cell[0][0], cell[0][2])):
        row = [f"{mbit}", f"{delay:.0f}", f"{q:g}", f"{statistics.median(it.link_s / it.training_s for it in by_steps.values()):.2f}"]
        for steps in counts:
            it = by_steps.get(steps)
            row.append("" if it is None else f"{100 * it.hidden(it.exposed_s):.0f} / {100 * it.hidden(it.predicted_s):.0f}")
        rows.append(row)
    head = ["Mbit/s", "delay, ms", "Q", "X/C", *[f"{steps} steps" for steps in counts]]
    all_ = [it for by_steps in cells.values() for it in by_steps.values()]
    loads = [it.line["load"] for it in all_]
    late = [it for it in all_ if it.predicted_s > NOISE * it.training_s]
    quiet = [it for it in all_ if it not in late]
    longer = [(it.training_s + it.exposed_s) / (it.training_s + it.predicted_s) for it in late]
    within = [it for it in all_ if form.is_within_measured(it.line)]
    copies = [it.line["wire_bytes"] / it.planned_bytes for it in late]
    summary = filled(
        f"{len(all_)} cells. Where no waiting is predicted, there is none in {sum(it.exposed_s == 0 for it in quiet)} of {len(quiet)} "
        f"cells. In the other {len(late)}, epochs take {statistics.median(longer):.1f} times as long as predicted in the median "
        f"({min(longer):.1f} to {max(longer):.1f}), and links carry {statistics.median(copies):.1f} times the bytes of the exchange "
        f"(at most {max(copies):.1f}). Of {len(within)} exchanges in {form.measured_steps} steps or more that take at most "
        f"{form.measured:g} of what hides by the prediction, {sum(it.exposed_s == 0 for it in within)} hid. Load of the machine: {min(loads):.0f} to {max(loads):.0f}."
    )
    return {"hidden": table(head, rows, 0) + summary}


def plots(lines, form):
    if not lines:
        return {}
    delays = sorted({line["delay_ms"] for line in lines})
    names = [f"{delay:.0f} ms each way" if delay else "no delay" for delay in delays]
    plot = Plot(names, "hidden, %", (0, 100))
    rates = sorted({line["mbit"] for line in lines})
    for panel, delay in enumerate(delays):
        x = lambda ratio: plot.x0(panel) + plot.width * (min(max(math.log2(ratio), LEAST), MOST) - LEAST) / (MOST - LEAST)
        ticks = [2.0**power for power in range(LEAST + 1, MOST + 1, 2)]
        plot.marks(panel, [(x(tick), f"{tick:g}" if tick >= 1 else f"1/{1 / tick:g}") for tick in ticks], "time of the exchange, in epochs of training")
        curve = [2 ** (LEAST + (MOST - LEAST) * at / 100) for at in range(101)]
        plot.path([(x(ratio), 100 * min(1.0, 1 / ratio)) for ratio in curve], COLOURS[6])
        for line in lines:
            if line["delay_ms"] == delay:
                it = Measured(line, form)
                plot.point(x(it.link_s / it.training_s), 100 * it.hidden(it.exposed_s), 0, COLOURS[rates.index(line["mbit"])])
    plot.legend([*((f"{rate} Mbit/s", COLOURS[index]) for index, rate in enumerate(rates)), ("link's time alone", COLOURS[6])])
    return {"hiding.svg": plot.written()}
