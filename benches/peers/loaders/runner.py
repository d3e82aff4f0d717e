"""A system's child process, from the outside: started, asked, stopped while others have their turn, and ended."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from bucket import environment

HERE = Path(__file__).parent
LIMIT = 240  # seconds that anything a child is asked for may take


class Failed(Exception):
    """A system cannot carry out a request; the message has the reason."""


class Folders:
    """Where things of a kind lie: the source, what systems wrote (`data`, the bucket), their caches and logs."""

    def __init__(self, work, kind):
        self.root = Path(work) / kind.letter
        self.source = self.root / "source"
        for name in ("data", "cache", "log"):
            (self.root / name).mkdir(parents=True, exist_ok=True)

    def place(self, name, system, kind, setting, bucket):
        place = {
            "system": name,
            "kind": kind.letter,
            "rows": kind.rows,
            "source": str(self.source),
            "folder": str(self.root / "data" / (system.format or "none")),
            "cache": str(self.root / "cache" / name),
            "setting": setting,
        }
        return {**place, "bucket": bucket} if system.streams else place

    def log(self, name):
        return open(self.root / "log" / f"{name}.log", "ab")


class Runner:
    def __init__(self, folders, place):
        self.name = place["system"]
        self.read, write = os.pipe()
        with folders.log(self.name) as log:
            self.process = subprocess.Popen(
                [sys.executable, "-B", HERE / "child.py", "measure", json.dumps({**place, "answers": write})],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[write],
                env=environment(place.get("bucket")),
                start_new_session=True,
            )
        os.close(write)
        self.rest = b""
        self.ready = self.answer()

    def ask(self, verb, *arguments):
        self.signal(signal.SIGCONT)
        self.process.stdin.write((json.dumps([verb, *arguments]) + "\n").encode())
        self.process.stdin.flush()
        return self.answer()

    def answer(self):
        while b"\n" not in self.rest:
            if not select.select([self.read], [], [], LIMIT)[0]:
                raise Failed(f"no answer in {LIMIT} s")
            read = os.read(self.read, 65536)
            if not read:
                raise Failed("it died; its log says more")
            self.rest += read
        line, self.rest = self.rest.split(b"\n", 1)
        value = json.loads(line)
        if "error" in value:
            raise Failed(value["error"])
        return value

    def pause(self):
        """So that its further read-ahead is not done at another's expense."""
        self.signal(signal.SIGSTOP)

    def signal(self, number):
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def end(self):
        self.signal(signal.SIGCONT)
        try:
            self.process.stdin.close()
            self.process.wait(10)
        except (subprocess.TimeoutExpired, OSError):
            pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)  # with whatever workers it left
        except ProcessLookupError:
            pass
        self.process.wait()
        os.close(self.read)


def prepare(folders, place):
    """Has a system write its format, unless that was done."""
    folder = Path(place["folder"])
    done = folders.root / "data" / f"{folder.name}.done"
    if done.exists() or folder.name == "none":
        return
    if folder.exists():
        raise Failed(f"{folder} is not whole; delete it")
    with folders.log(place["system"]) as log:
        command = [sys.executable, "-B", HERE / "child.py", "prepare", json.dumps(place)]
        environ = environment(place.get("bucket"))
        try:
            ended = subprocess.run(command, stdout=log, stderr=log, env=environ, timeout=2 * LIMIT).returncode
        except subprocess.TimeoutExpired:
            raise Failed(f"not written in {2 * LIMIT} s") from None
    if ended:
        raise Failed(f"not written, see {log.name}")
    done.touch()
