"""Jobs of which a worker is killed: what tests give an engine instead of a job that lives."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

from shardd._tables import Job


def die_once(flag: Path, process: Callable[[], int]) -> None:
    """Kills a process, if this is the first call of all."""
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(process(), signal.SIGKILL)


def killing(folder: Path, kill: str, process: Callable[[], int] = os.getpid, of: type = Job) -> type:
    """Jobs of which a process is killed: ``METHOD-WHEN``, before (``early``) or after it has done its work."""
    method, when = kill.split("-")

    def work(self, part):
        if when == "early":
            die_once(folder / kill, process)
        done = getattr(of, method)(self, part)
        if when == "late":
            die_once(folder / kill, process)
        return done

    return type("KillingJob", (of,), {method: work})
