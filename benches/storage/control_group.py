"""A control group of version 1 or 2 that limits the memory of the processes of a bench."""

import contextlib
import os
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def group(limit_bytes):
    """A function with which a process joins a group with this limit, and the limit; both None where no group can be made."""
    if limit_bytes is None:
        yield None, None
        return
    place, setting = (ROOT, "memory.max") if (ROOT / "cgroup.controllers").exists() else (ROOT / "memory", "memory.limit_in_bytes")
    folder = place / f"shardd-storage-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        yield None, None
        return
    try:
        (folder / setting).write_text(str(limit_bytes))
        yield lambda: (folder / "cgroup.procs").write_text(str(os.getpid())), limit_bytes
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()
