"""Processes of a machine share a directory of shards: single fetches, the remains of a death, and the
limit."""

import fcntl
import multiprocessing
import os
import random
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

import shardd
from helpers import EVERY, PLAN, WHOLE, ids

LEASE_S = 30
WORLD = 4


def own(url: str, local, rank: int, world: int = WORLD, cache_limit=None) -> shardd.DataLoader:
    dataset = shardd.StreamingDataset(
        url, local=str(local), cache_limit=cache_limit, rank=rank, world_size=world, format="numpy", **PLAN
    )
    return shardd.DataLoader(dataset, batch_size=5, num_workers=1)


def shards_of(bucket) -> dict[str, int]:
    return {key: len(body) for key, body in bucket.objects.items() if "/shards/" in key and key.endswith(".arrow")}


def reads_of(bucket) -> dict[str, int]:
    return {key: bucket.reads.get(key, 0) for key in shards_of(bucket)}


def read(environment: dict, url: str, local: str, rank: int, limit: str | None, into) -> None:
    """A process: tells its first batch, and at the end all numbers. Is there until it is killed: an ending
    process gives up its read-ahead, and another one fetches its unfinished shard."""
    os.environ.update(environment)
    numbers = []
    loader = own(url, local, rank, cache_limit=limit)
    for batch in loader:
        if not numbers:
            into.send("begun")
        numbers += ids([batch]) if loader.weight else []
    into.send(numbers)
    into.poll(None)


@contextmanager
def processes(bucket, local: Path, limit: str | None = None):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "helpers"])
    started = []
    for rank in range(WORLD):
        out, into = context.Pipe()
        process = context.Process(target=read, args=(bucket.environment, bucket.url, str(local), rank, limit, into))
        process.start()
        into.close()
        started.append((process, out))
    try:
        yield started
    finally:
        bucket.go_on()
        for process, _ in started:
            process.kill()
            process.join()


def receive(out, seconds: float = LEASE_S):
    assert out.poll(seconds), f"nothing within {seconds} s"
    return out.recv()


@contextmanager
def watched(local: Path):
    """The most bytes of shards that there were at any time while this is entered."""
    most = [0]
    stop = threading.Event()

    def watch() -> None:
        # A process that changes the files has this lock: files counted under it were there at one time.
        with open(local / "lock", "a") as lock:
            while not stop.wait(0.001):
                fcntl.flock(lock, fcntl.LOCK_SH)
                sizes = []
                for file in (local / "shards").iterdir():
                    try:
                        sizes.append(file.stat())
                    except FileNotFoundError:
                        continue
                fcntl.flock(lock, fcntl.LOCK_UN)
                # One that gets its name meanwhile may be seen twice.
                most[0] = max(most[0], sum({file.st_ino: file.st_size for file in sizes}.values()))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield most
    finally:
        stop.set()
        thread.join()


@pytest.fixture(scope="module")
def expected(bucket, tmp_path_factory) -> list[list[int]]:
    """What each rank reads."""
    local = tmp_path_factory.mktemp("alone")
    read = [ids(own(bucket.url, local, rank)) for rank in range(WORLD)]
    assert sorted(number for part in read for number in part) == EVERY
    return read


def test_each_shard_is_fetched_once_for_all_processes_and_epochs(bucket, tmp_path, expected):
    before = reads_of(bucket)
    with processes(bucket, tmp_path) as started:
        assert [(receive(out), receive(out))[1] for _, out in started] == expected
    again = own(bucket.url, tmp_path, 0, 1)
    assert sorted(ids(again)) == sorted(ids(again)) == EVERY
    assert reads_of(bucket) == {key: count + 1 for key, count in before.items()}


def test_a_dead_process_blocks_nobody_and_the_limit_holds(bucket, tmp_path, expected):
    """One of four is killed, in its first fetch or in the middle of its epoch, again and again over the same directory."""
    chance = random.Random(7)
    limit = sum(shards_of(bucket).values()) * 2 // 3
    own(bucket.url, tmp_path, 0, cache_limit=limit)._native_for(0, 0).close()
    with watched(tmp_path) as most:
        for turn in range(100 if WHOLE else 5):
            fetches = turn % 2 == 0
            if fetches:
                # Nothing of this round is there yet.
                for file in (tmp_path / "shards").iterdir():
                    file.unlink(missing_ok=True)
                bucket.pause("/shards/")
            victim = chance.randrange(WORLD)
            with processes(bucket, tmp_path, str(limit)) as started:
                process, out = started[victim]
                if fetches:
                    assert bucket.is_waited_for.wait(LEASE_S)
                else:
                    assert receive(out) == "begun"
                process.kill()
                process.join()
                bucket.go_on()
                survivors = [rank for rank in range(WORLD) if rank != victim]
                read = {rank: (receive(started[rank][1]), receive(started[rank][1]))[1] for rank in survivors}
            assert read == {rank: expected[rank] for rank in survivors}, turn
    assert 0 < most[0] <= limit
    # What the dead left does not keep the next one waiting, either.
    assert sorted(ids(own(bucket.url, tmp_path, 0, 1, limit))) == EVERY


def test_a_limit_that_is_too_small_is_refused_with_the_one_that_is_needed(bucket, tmp_path):
    with pytest.raises((ValueError, OSError, RuntimeError), match=r"a cache of 1.0 KiB is too small for shards of .*: allow at least 4\d"):
        next(iter(own(bucket.url, tmp_path, 0, cache_limit="1KiB")))


def test_what_is_left_of_an_earlier_run_is_used_and_what_is_damaged_is_fetched_again(bucket, tmp_path):
    assert sorted(ids(own(bucket.url, tmp_path, 0, 1))) == EVERY
    before = reads_of(bucket)
    whole = sorted((tmp_path / "shards").iterdir())
    # A file that was cut, one that was fetched half, and an unknown one.
    with open(whole[0], "r+b") as file:
        file.truncate(100)
    (tmp_path / "shards" / f"{whole[1].name}.part").write_bytes(b"half")
    (tmp_path / "shards" / "notes.txt").write_text("mine")
    assert sorted(ids(own(bucket.url, tmp_path, 0, 1))) == EVERY
    after = reads_of(bucket)
    assert sum(after.values()) - sum(before.values()) == 1


def test_a_flipped_byte_in_the_directory_never_reaches_a_batch(bucket, tmp_path):
    assert sorted(ids(own(bucket.url, tmp_path, 0, 1))) == EVERY
    victim = sorted((tmp_path / "shards").iterdir())[0]
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    before = reads_of(bucket)
    assert sorted(ids(own(bucket.url, tmp_path, 0, 1))) == EVERY
    assert sum(reads_of(bucket).values()) == sum(before.values()) + 1, "it is fetched again"
