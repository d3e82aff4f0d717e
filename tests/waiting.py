"""Waiting for something to be so, in the scripts of tests/."""

import http.client
import threading
import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")
# The longest wait for something to be so, in seconds. Machines of CI are slow at times.
PATIENCE = 90.0


class Missing(Exception):
    """A condition was not met in time."""


def until(what: str, is_so: Callable[[], Answer | None], patience: float = PATIENCE, every: float = 0.25) -> Answer:
    """The first truthy answer. Asks again and again, until `patience` seconds are over. An OSError is no answer yet."""
    end, pause, last = time.monotonic() + patience, threading.Event(), "nothing"
    while True:
        try:
            if answer := is_so():
                return answer
        except (OSError, http.client.HTTPException, ValueError) as error:
            last = repr(error)
        if time.monotonic() >= end:
            raise Missing(f"not within {patience:.0f} s: {what} (last: {last})")
        pause.wait(every)
