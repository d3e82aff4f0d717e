"""A control group of version 1 or 2 that limits the memory of the processes of a bench, or only their pages of files."""

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
# Often enough for memory that grows by a gigabyte a second: until then, its pages are taken from those of files.
EVERY_S = 0.02
# How long the processes of a group may take to end when they are killed.
ENDED_WITHIN_S = 10
# Page tables and buffers of the kernel.
KERNEL_BYTES = 128 << 20


@contextlib.contextmanager
def group(limit_bytes=None, page_bytes=None):
    """A function with which a process joins a group; None where none can be made.

    `limit_bytes` limits all memory. `page_bytes` limits pages of files: the limit of the group follows the memory
    that is no file's."""
    version_2 = (ROOT / "cgroup.controllers").exists()
    folder = (ROOT if version_2 else ROOT / "memory") / f"shardd-storage-{os.getpid()}"
    if limit_bytes is None and page_bytes is None:
        yield None
        return
    try:
        folder.mkdir()
    except OSError:
        yield None
        return
    setting = folder / ("memory.limit_in_bytes" if not version_2 else "memory.max" if limit_bytes else "memory.high")
    keys = {"anon", "shmem"} if version_2 else {"total_rss", "total_shmem"}
    over = threading.Event()

    def follow():
        while not over.wait(EVERY_S):
            lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
            held = sum(int(value) for key, value in lines if key in keys)
            # Refused as long as the kernel finds nothing to give back.
            with contextlib.suppress(OSError):
                setting.write_text(str(held + page_bytes + KERNEL_BYTES))

    follower = threading.Thread(target=follow) if page_bytes else None
    try:
        if limit_bytes:
            setting.write_text(str(limit_bytes))
        elif not version_2:
            # Who grows faster than the limit waits for it.
            (folder / "memory.oom_control").write_text("1")
        if follower:
            follower.start()
        yield lambda: (folder / "cgroup.procs").write_text(str(os.getpid()))
    finally:
        over.set()
        if follower:
            follower.join()
        remove(folder)


def remove(folder):
    """Removes a group, and kills the processes that are still in it: a bench that is cut off leaves some."""
    until = time.monotonic() + ENDED_WITHIN_S
    while folder.exists() and time.monotonic() < until:
        for process in (folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        # Refused until the kernel has put the last of them away.
        with contextlib.suppress(OSError):
            folder.rmdir()
            return
        time.sleep(EVERY_S)
