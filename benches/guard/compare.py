"""Two builds in turns (A B, B A, ...), and whether the second is slower."""

import math
from dataclasses import dataclass

import programs
from signed_rank import hodges_lehmann, holm, p_greater

# A regression is one by a test at this level, corrected for the number of benchmarks.
LEVEL = 0.05


@dataclass
class Verdict:
    """The verdict on a benchmark. Changes are of the ratio in the bad direction: 0.1 is a tenth slower."""

    name: str
    base: float
    new: float
    change: float
    low: float
    high: float
    p: float
    p_corrected: float
    word: str


def pairs(base, new, benchmarks, count, budget_ms, slow=None, progress=lambda line: None):
    """By benchmark the ratios of `count` pairs of processes. Every other pair goes the other way round, and each round takes
    all benchmarks, so that other work of the machine falls on both builds and on all pairs."""
    found = {benchmark.name: [] for benchmark in benchmarks}
    for turn in range(count):
        progress(f"pair {turn + 1} of {count}")
        for benchmark in benchmarks:
            seen = {}
            for side in ("base", "new") if turn % 2 == 0 else ("new", "base"):
                program = base if side == "base" else new
                seen[side] = programs.sample(program, benchmark, budget_ms, slow if side == "new" else None)["ratio"]
            found[benchmark.name].append((seen["base"], seen["new"]))
    return found


def verdicts(found, benchmarks):
    """A regression is a change for the worse that exceeds the benchmark's least effect, by Wilcoxon's test of the part beyond
    it; an improvement the same for the better."""
    rows = []
    for benchmark in benchmarks:
        sign = 1 if benchmark.better == "lower" else -1
        worse = [sign * math.log(new / base) for base, new in found[benchmark.name]]
        margin = math.log1p(benchmark.effect)
        p_worse = p_greater([value - margin for value in worse])
        p_better = p_greater([-value - margin for value in worse])
        rows.append((benchmark, worse, p_worse, p_better))
    corrected_worse = holm([row[2] for row in rows])
    corrected_better = holm([row[3] for row in rows])
    return [verdict(*row, found, *both) for row, *both in zip(rows, corrected_worse, corrected_better)]


def verdict(benchmark, worse, p_worse, p_better, found, corrected_worse, corrected_better):
    word = "slower" if corrected_worse < LEVEL else "faster" if corrected_better < LEVEL else ""
    p, corrected = (p_better, corrected_better) if word == "faster" else (p_worse, corrected_worse)
    change, low, high = (math.expm1(value) if value < 700 else math.inf for value in hodges_lehmann(worse))
    # The middle pair of the sorted ratios: half of the figures are below it.
    base, new = (sorted(side)[len(side) // 2] for side in zip(*found[benchmark.name]))
    return Verdict(benchmark.name, base, new, change, low, high, p, corrected, word)


def least_pairs(benchmarks):
    """How many pairs a test needs so that a change in all of them can pass Holm's correction."""
    return math.ceil(math.log2(benchmarks / LEVEL) + 1e-9)


def table(rows):
    lines = [f"{'benchmark':<18} {'base':>9} {'new':>9} {'change':>8} {'95 % interval':>20} {'p':>9} {'corrected':>9}"]
    for row in rows:
        interval = f"{100 * row.low:+.1f} to {100 * row.high:+.1f} %"
        lines.append(
            f"{row.name:<18} {row.base:>9.3f} {row.new:>9.3f} {100 * row.change:>+6.1f} % {interval:>20} {row.p:>9.2g} "
            f"{row.p_corrected:>9.2g}  {row.word}".rstrip()
        )
    return "\n".join(lines)
