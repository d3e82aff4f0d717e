"""How much faster a training loop would be if its batches were free."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._loader import DataLoader


@dataclass(frozen=True)
class Headspace:
    """The rates of a training loop with its loader and with batches from memory, and what the loader waited for."""

    steps: int
    """Batches measured with each."""
    loader_rate: float
    """Batches per second with the loader."""
    cached_rate: float
    """Batches per second with batches from memory: no loader makes the loop faster."""
    waits_for: str
    """The bottleneck, as in :meth:`DataLoader.stats`."""
    advice: str
    """A sentence with the remedy."""

    @property
    def share(self) -> float:
        """The part of the loop's time that goes into waiting for data: 0 if batches are always ready, near 1 if the loop only waits."""
        return max(0.0, 1 - self.loader_rate / self.cached_rate)

    def __str__(self) -> str:
        return (
            f"{self.loader_rate:.1f} batches/s with the loader, {self.cached_rate:.1f} with batches from memory: data takes "
            f"{100 * self.share:.0f} % of the time. {self.advice}"
        )

    def plot(self, ax: Any = None) -> Any:
        """Draws both rates with matplotlib, and returns the ``Axes``."""
        from . import _plot

        return _plot.headspace(self, ax)

    def _repr_html_(self) -> str:
        from . import _notebook

        return _notebook.headspace(self)


def headspace(loader: DataLoader, train_step: Callable[[Any], object], *, steps: int = 100, cached_batches: int = 8) -> Headspace:
    """Measures how much of a training loop's time goes into waiting for data.

    Runs ``train_step`` on ``steps`` batches of the loader, then on as many from memory: the first ``cached_batches`` of them, again
    and again. The difference is what a faster loader could bring. If there is none, look for the time in your own code.

    Before either, ``train_step`` runs on the cached batches once, so that compilation and warm-up do not count. On a device, end it
    with a synchronisation, such as ``torch.cuda.synchronize()``: the time of a call counts. Your model is trained on these batches,
    so pass a copy of it, or measure before training. The loader's next iteration reads what it would
    have read without this.

    Of several ranks, each measures its own loader; all call this with the same numbers.
    """
    for name, value in (("steps", steps), ("cached_batches", cached_batches)):
        if value < 1:
            raise ValueError(f"{name}={value} measures nothing; use at least 1")
    place = loader._place()
    try:
        batches = _endless(loader)
        cached = list(itertools.islice(batches, cached_batches))
        if not cached:
            raise ValueError("the loader has no batch, so there is nothing to measure")
        for batch in cached:
            train_step(batch)
        before = loader.stats()
        loader_s = _time(itertools.islice(batches, steps), train_step)
        stats = loader.stats(since=before)
        cached_s = _time(itertools.islice(itertools.cycle(cached), steps), train_step)
    finally:
        loader._return_to(place)
    return Headspace(steps, steps / loader_s, steps / cached_s, stats["waits_for"], stats["advice"])


def _endless(loader: DataLoader) -> Iterator[Any]:
    """The batches of this epoch and the next ones; none if there are none in one."""
    count = 1
    while count:
        count = 0
        for batch in loader:
            count += 1
            yield batch


def _time(batches: Iterable[Any], train_step: Callable[[Any], object]) -> float:
    """Seconds that the steps took, and getting their batches."""
    began = time.perf_counter()
    for batch in batches:
        train_step(batch)
    return time.perf_counter() - began
