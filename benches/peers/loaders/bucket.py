"""A server that speaks S3 on loopback, with a folder as its bucket `data`: s3s-fs where SHARDD_S3S_FS names it, which serves
files as they lie there, else the tests' moto (SHARDD_PYTHON, a Python that has it), which is slower and keeps them in memory."""

import contextlib
import json
import os
import socket
import subprocess
import time
from pathlib import Path

MOTO = Path(__file__).resolve().parents[3] / "tests/reference/s3_server.py"
KEYS = {"AWS_ACCESS_KEY_ID": "the-key", "AWS_SECRET_ACCESS_KEY": "the-secret"}
REGION = {"AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1"}


@contextlib.contextmanager
def bucket(root):
    """Serves `root/data` while in the context. None where there is no server to be had."""
    with contextlib.ExitStack() as stack:
        if binary := os.environ.get("SHARDD_S3S_FS"):
            # It takes either signed requests, which S3 clients send, or those that are not, as of plain HTTP clients.
            keys = ["--access-key", KEYS["AWS_ACCESS_KEY_ID"], "--secret-key", KEYS["AWS_SECRET_ACCESS_KEY"]]
            signed, plain = (stack.enter_context(s3s_fs(binary, root, options)) for options in (keys, []))
            yield {"endpoint": signed, "url": "s3://data", "http": f"{plain}/data", "server": "s3s-fs"}
        elif python := os.environ.get("SHARDD_PYTHON"):
            endpoint = stack.enter_context(moto(python, root / "data"))
            yield {"endpoint": endpoint, "url": "s3://data", "http": f"{endpoint}/data", "server": "moto"}
        else:
            yield None


@contextlib.contextmanager
def s3s_fs(binary, root, options):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = [binary, "--host", "127.0.0.1", "--port", str(port), *options, str(root)]
    with ended(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)) as process:
        wait(process, port)
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def moto(python, folder):
    command = [python, "-B", str(MOTO), str(folder), "--open"]
    with ended(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)) as process:
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"{python} has no moto (tests/run installs it)")
        yield json.loads(line)["endpoint"]


@contextlib.contextmanager
def ended(process):
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait(process, port):
    limit = time.monotonic() + 10
    while process.poll() is None and time.monotonic() < limit:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.01)
    raise SystemExit(f"{process.args[0]} does not answer on port {port}")


def environment(place):
    """What a process needs to use it, and nothing that could point to a real cloud."""
    cleaned = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    if not place:
        return cleaned
    return {**cleaned, **KEYS, **REGION, "AWS_ENDPOINT_URL": place["endpoint"]}
