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
KEYS = {"AWS_ACCESS_KEY_ID": "the-key", "AWS_SECRET_ACCESS_KEY": "the-secret", "AWS_REGION": "us-east-1"}


@contextlib.contextmanager
def bucket(root):
    """Serves `root/data` while in the context. None where there is no server to be had."""
    if binary := os.environ.get("SHARDD_S3S_FS"):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        command = [binary, "--host", "127.0.0.1", "--port", str(port), str(root)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        endpoint = f"http://127.0.0.1:{port}"
        wait(process, port)
        name = "s3s-fs"
    elif python := os.environ.get("SHARDD_PYTHON"):
        command = [python, "-B", str(MOTO), str(root / "data"), "--open"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        line = process.stdout.readline()
        if not line:
            yield None
            return
        endpoint = json.loads(line)["endpoint"]
        name = "moto"
    else:
        yield None
        return
    try:
        yield {"endpoint": endpoint, "url": "s3://data", "http": f"{endpoint}/data", "server": name}
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
    return {**cleaned, **KEYS, "AWS_ENDPOINT_URL": place["endpoint"], "AWS_DEFAULT_REGION": KEYS["AWS_REGION"]}
