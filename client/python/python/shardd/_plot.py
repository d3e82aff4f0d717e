"""Charts with matplotlib, which is imported with the first one."""

from __future__ import annotations

import copy
import json
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

from . import _html, _notebook

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ._dataset import StreamingDataset
    from ._headspace import Headspace
    from ._loader import DataLoader

# Samples of a rank in a step that are counted together.
_BATCH = 64

# Different labels beyond which a histogram shows none of them.
_MOST_LABELS = 1000


def _axes(ax: Axes | None) -> Axes:
    """The given axes, or those of a new figure."""
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot
    except ImportError as error:
        raise ImportError("plots need matplotlib, which cannot be imported: pip install matplotlib") from error
    return matplotlib.pyplot.subplots(layout="constrained")[1]


def _bars(ax: Axes, rows: list[tuple[str, float, str]], unit: str, title: str) -> Axes:
    """Horizontal bars, the first one on top."""
    names, amounts, colours = zip(*rows)
    drawn = ax.barh(names, amounts, color=colours)
    ax.bar_label(drawn, fmt="%.3g", padding=3)
    ax.margins(x=0.12)
    ax.invert_yaxis()
    ax.set(xlabel=unit, title=title)
    return ax


def loader(of: DataLoader, ax: Axes | None) -> Axes:
    ax = _axes(ax)
    stats = of.stats()
    kinds = [("loop", _notebook.LOOP), ("threads", _notebook.THREADS)]
    rows = [(f"{who}: {name}", stats[count], colour) for who, every in kinds for count, name, colour in every]
    return _bars(ax, rows, "seconds", f"the loop waits for {stats['waits_for']}")


def headspace(of: Headspace, ax: Axes | None) -> Axes:
    ax = _axes(ax)
    rows = [("with the loader", of.loader_rate, _html.BLUE), ("from memory", of.cached_rate, _html.GREY)]
    return _bars(ax, rows, "batches per second", f"data takes {100 * of.share:.0f} % of the time")


def labels(of: StreamingDataset, column: str, epoch: int, ranks: int | None, samples: int, ax: Axes | None) -> Axes:
    ax = _axes(ax)
    counts = count_labels(of, column, epoch, ranks, samples)
    values = sorted(set().union(*counts), key=lambda value: (value is None, value))
    if len(values) > _MOST_LABELS:
        raise ValueError(f"column {column!r} has {len(values)} different values in {samples} samples; a histogram shows up to {_MOST_LABELS}")
    image = ax.imshow([[count[value] for value in values] for count in counts], aspect="auto", cmap="viridis", vmin=0)
    ax.figure.colorbar(image, ax=ax, label="samples")
    names = _classes(of, column)
    if len(values) <= 50:
        shown = [names[value] if names and isinstance(value, int) and 0 <= value < len(names) else str(value) for value in values]
        ax.set_xticks(range(len(values)), shown, rotation=90 if max(map(len, shown)) > 2 else 0)
    if len(counts) <= 32:
        ax.set_yticks(range(len(counts)))
    ax.set(xlabel=column, ylabel="rank", title=f"the first {sum(map(Counter.total, counts)):,} samples of epoch {epoch}")
    return ax


def _classes(of: StreamingDataset, column: str) -> list[str] | None:
    named = of._schema[column]["metadata"].get("shardd.classes")
    return json.loads(named) if named else None


def count_labels(of: StreamingDataset, column: str, epoch: int, ranks: int | None, samples: int) -> list[Counter[Any]]:
    """How often each rank gets each value of a column, in the first samples of an epoch's order.

    Virtual rank r of as many as there are ranks reads the samples of rank r. So one loader reads those of all ranks."""
    if column not in of._schema:
        raise ValueError(f"no column {column!r}; there are {', '.join(of._schema)}")
    if of._schema[column]["shape"] and of._schema[column]["number"] is not None:
        raise ValueError(f"values of column {column!r} have the shape {of._schema[column]['shape']}: a histogram is of single values")
    if epoch < 0 or samples < 1:
        raise ValueError("epoch counts from 0, and samples from 1")
    if not _is_local(of):
        raise ValueError("plot_labels reads samples of a directory: from buckets and nodes, it would fetch whole shards")
    ranks = of.ranks.world if ranks is None else ranks
    if ranks < 1 or of._mixture is None and of.partitions % ranks:
        raise ValueError(f"ranks={ranks} does not divide the {of.partitions} partitions")
    own = copy.copy(of)
    own._columns, own._format, own._image, own._features = [column], "numpy", (None, None), None
    own._limit = min(samples, of.num_samples)
    own._given_ranks, own._taken = (0, 1, None, None), None
    counts: list[Counter[Any]] = [Counter() for _ in range(ranks)]
    from ._loader import DataLoader

    reads = DataLoader(own, batch_size=_BATCH, virtual_ranks=ranks, num_workers=1, prefetch_factor=1, check_ranks=False)
    reads.set_epoch(epoch)
    with closing(reads):
        for number, batch in enumerate(reads):
            if reads.weight:
                values = batch[column]
                counts[number % reads.accumulation].update(values.tolist() if hasattr(values, "tolist") else values)
    return counts


def _is_local(of: StreamingDataset) -> bool:
    places = [of._where] if of._mixture is None else [source.where for source in of._mixture.sources]
    return all(where.get("place") and "://" not in where["place"] for where in places)
