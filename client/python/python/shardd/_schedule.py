"""How many samples partitions exchange after each epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def shares(q: Any) -> list[float]:
    """The shares of a schedule, as the user has given it: a number, or a list of them."""
    return [_share(share, q) for share in q] if isinstance(q, Sequence) and not isinstance(q, (str, bytes)) else [_share(q, q)]


def _share(share: Any, q: Any) -> float:
    # `float` reads numbers in strings, too, and takes True as 1.
    if not isinstance(share, (str, bytes, bool)):
        try:
            return float(share)
        except TypeError:
            pass
    where = "" if share is q else f" has {share!r}, which"
    raise TypeError(f"q={q!r}{where} is not a number: pass a number from 0 to 1, such as q=0.1, or a list of them")
