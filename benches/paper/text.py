"""Numbers and tables as the page about the paper writes them."""

import statistics
import textwrap


def spread(values):
    return statistics.stdev(values) if len(values) > 1 else 0.0


def signed(value):
    return f"{value:+.1f}".replace("-", "−").replace("+0.0", "0.0").replace("−0.0", "0.0")


def difference(values):
    mean = signed(statistics.mean(values))
    return f"{mean} ± {spread(values):.1f}" if len(values) > 1 else mean


def counted_difference(values):
    """With the number of seeds."""
    return f"{difference(values)} ({len(values)})" if values else "–"


def table(head, rows, left=1):
    marks = ["---"] * left + ["---:"] * (len(head) - left)
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, marks, *rows]) + "\n"


def filled(words):
    """A paragraph below a table, in lines of the page's width."""
    return "\n" + textwrap.fill(words, 110, break_long_words=False, break_on_hyphens=False) + "\n"


def q_name(q):
    return q.replace(",", ", then ")
