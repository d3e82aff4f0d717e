"""Processes of a bench: their children, and their ends."""

import contextlib
import os
import signal
from pathlib import Path


def children(pid):
    """The processes that this one has started and that still run."""
    found = []
    # A process may end meanwhile, and a thread, whose children are another's then.
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += [int(child) for child in (task / "children").read_text().split()]
    return sorted(child for child in found if state(child) not in ("Z", None))


def state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return None


def end(processes):
    """Kills the sessions of these processes, each its leader's."""
    for process in processes:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
