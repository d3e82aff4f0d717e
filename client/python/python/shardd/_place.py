"""Where a store is."""

from __future__ import annotations

import os
from typing import Any

from . import _native


def open_store(place: str | None = None, **how: Any) -> _native.Store:
    """A store by its directory or URL, or nodes by their addresses. Refuses a file in the place of a directory."""
    if place is not None and (file := _file_in(place.removeprefix("file://"))) is not None:
        raise NotADirectoryError(
            f"{file} is a file, and a store is a directory, made by shardctl ingest or shardd.from_torch, or an address such as "
            "s3://bucket/folder: pass one of these"
        )
    return _native.Store(place=place, **how)


def _file_in(path: str) -> str | None:
    """The part of a path, from its beginning, that is a file."""
    while path and "://" not in path and not os.path.isdir(path):
        if os.path.isfile(path):
            return path
        path = os.path.dirname(path.rstrip("/"))
    return None
