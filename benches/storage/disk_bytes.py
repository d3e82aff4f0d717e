"""Bytes that a process and its children have had read from disks."""

import contextlib
from pathlib import Path


def disk_bytes(pid):
    """Linux counts pages for the process whose read or page fault brought them in, whichever mapping they have then."""
    total = 0
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            total = int(line.split()[1])
    for task in Path(f"/proc/{pid}/task").iterdir():
        # A thread may end meanwhile, whose children are another's then, and a child, whose bytes are gone.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for child in (task / "children").read_text().split():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    total += disk_bytes(int(child))
    return total
