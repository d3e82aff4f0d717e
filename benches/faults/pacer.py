"""Lets shardtrain take a step no sooner than its time after the one before, as if an accelerator computed on it.

Rank 0 writes a line after every step (`--progress -`) and waits while its pipe is full. The pipe is as small as
the kernel makes one, and holds filler up to the length of a line; the filler is taken out when the time has come.
"""

import fcntl
import json
import os
import select
import time

FILLER = b"x" * 3499 + b"\n"


class Pacer:
    def __init__(self, pace_s):
        self.pace_s, self.due, self.rest = pace_s, 0.0, b""
        self.out, self.into = os.pipe()
        if fcntl.fcntl(self.into, fcntl.F_SETPIPE_SZ, 4096) != 4096:
            raise OSError("the pipe is longer than a page, so that steps would not wait")
        os.set_blocking(self.out, False)
        # Another opening of the pipe: only this end must not wait.
        self.filled = os.open(f"/proc/self/fd/{self.into}", os.O_WRONLY | os.O_NONBLOCK)
        os.write(self.filled, FILLER)

    def steps(self, within_s):
        """The lines of the next steps, nearly always one; none if there is none in this time."""
        time.sleep(max(0.0, self.due - time.monotonic()))
        found, deadline = self._taken(), time.monotonic() + within_s
        while not found and select.select([self.out], [], [], max(0.0, deadline - time.monotonic()))[0]:
            found += self._taken()
        at = time.monotonic()
        while True:
            try:
                os.write(self.filled, FILLER)
                break
            except BlockingIOError:
                # A line slipped in, and pays with the time after it.
                found += self._taken()
        if found:
            self.due = at + self.pace_s * len(found)
        return [(at, line) for line in found]

    def _taken(self):
        try:
            text = self.rest + os.read(self.out, 65536)
        except BlockingIOError:
            return []
        *lines, self.rest = text.split(b"\n")
        return [json.loads(line) for line in lines if line.startswith(b"{")]

    def close(self):
        for end in (self.out, self.into, self.filled):
            os.close(end)
