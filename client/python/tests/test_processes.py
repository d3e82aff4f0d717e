"""Threads, forks, signals and ends of processes."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

import shardd
from helpers import EVERY, ids, loader, own_threads, run

PRELUDE = """
import os, sys, time
import shardd
def threads(): return len(os.listdir("/proc/self/task"))
"""


def test_no_thread_is_started_at_import_or_by_constructors(script, store):
    script(PRELUDE + """
assert threads() == 1, "import"
dataset = shardd.StreamingDataset(sys.argv[1], format="numpy")
loader = shardd.DataLoader(dataset, batch_size=10, num_workers=4)
sampler = shardd.Sampler(1000)
len(loader), len(dataset), len(sampler), loader.state_dict(), loader.load_state_dict(loader.state_dict()), iter(loader)
assert threads() == 1, "constructors"
next(iter(loader))
assert threads() > 1
loader.close()
import numpy
""", store, env={"OPENBLAS_NUM_THREADS": "1"})


def test_the_package_is_imported_and_reads_arrow_without_torch_and_numpy(script, store):
    script("""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "numpy", "pyarrow", "jax"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
import shardd
dataset = shardd.StreamingDataset(sys.argv[1], format="arrow")
assert len(dataset) == 1003 and not {"torch", "numpy", "pyarrow"} & set(sys.modules)
step = shardd.DataLoader(dataset, batch_size=10)._native_for(0, 0).next()
assert [len(column.to_list()) for column in step.columns(0)] == [10, 10, 10]
""", store)


def test_importing_the_package_imports_no_framework(script):
    said = script("""
import sys, time
began = time.process_time()
import shardd
print(time.process_time() - began)
assert not {"torch", "numpy", "pyarrow", "asyncio", "transformers"} & set(sys.modules)
""")
    assert float(said.stdout) < 0.5, "seconds of processor time"


@pytest.mark.parametrize("begun", [False, True], ids=["before", "after"])
def test_a_child_that_is_forked_before_or_after_the_first_batch_reads_and_so_does_its_parent(script, store, begun):
    script(PRELUDE + """
dataset = shardd.StreamingDataset(sys.argv[1], format="numpy")
loader = shardd.DataLoader(dataset, batch_size=10)
batches = iter(loader)
first = [next(batches)["id"].tolist() for _ in range(int(sys.argv[2]))]
state = loader.state_dict()
child = os.fork()
def rest(): return [number for batch in batches for number in batch["id"].tolist()]
if child == 0:
    # The very loader continues in the child, with threads of its own; and a new one can be had.
    assert sorted(sum(first, []) + rest()) == list(range(1003))
    assert sum(len(batch["id"]) for batch in shardd.DataLoader(dataset, batch_size=100)) == 1003
    sys.exit(0)
assert sorted(sum(first, []) + rest()) == list(range(1003))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
""", store, 3 if begun else 0)


def read_all(batches, into) -> None:
    into.send(sorted(ids(batches)))


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_loaders_and_datasets_go_to_processes_of_every_kind(store, method):
    context = multiprocessing.get_context(method)
    own = loader(store, batch_size=50)
    next(iter(own))
    for what in (shardd.DataLoader(own.dataset, batch_size=50), shardd.StreamingDataset(store, batch_size=50)):
        out, into = context.Pipe(duplex=False)
        process = context.Process(target=read_all, args=(what, into))
        process.start()
        into.close()
        assert out.poll(60) and out.recv() == EVERY
        process.join(60)
        assert process.exitcode == 0
    assert len(ids(own)) == len(EVERY)


def test_a_loader_that_is_pickled_goes_on_where_it_was(store):
    import pickle

    own = loader(store, batch_size=50)
    batches = iter(own)
    first = ids([next(batches) for _ in range(4)])
    again = pickle.loads(pickle.dumps(own))
    assert again.state_dict() == own.state_dict()
    again.load_state_dict(own.state_dict())
    assert sorted(first + ids(again)) == EVERY


def start(code: str, *arguments: str) -> subprocess.Popen:
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return subprocess.Popen([sys.executable, "-c", PRELUDE + code, *arguments], text=True, **pipes)


def test_ctrl_c_ends_a_wait_for_a_batch_within_a_second(bucket, tmp_path):
    process = start("""
loader = shardd.DataLoader(shardd.StreamingDataset(sys.argv[1], format="numpy", local=sys.argv[2]), batch_size=10)
batches = iter(loader)
print("ready", flush=True)
sys.stdin.readline()
try:
    print("waiting", flush=True)
    next(batches)
except KeyboardInterrupt:
    print("interrupted", flush=True)
""", bucket.url, str(tmp_path))
    try:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        bucket.pause()
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "waiting\n", process.stderr.read()
        assert bucket.is_waited_for.wait(10)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n", process.stderr.read()
        assert time.monotonic() - began < 1
        assert process.wait(10) == 0
        assert time.monotonic() - began < 2, "and the interpreter ends at once"
    finally:
        bucket.go_on()
        process.kill()
        process.wait()


def test_other_threads_run_while_a_batch_is_waited_for(bucket, tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    own = shardd.DataLoader(shardd.StreamingDataset(bucket.url, local=str(tmp_path)), batch_size=10)
    batches = iter(own)
    with ThreadPoolExecutor(1) as pool:
        bucket.pause()
        try:
            first = pool.submit(next, batches)
            # This thread has the interpreter's lock again and again while that one waits.
            counted = sum(not first.done() for _ in range(1_000_000))
        finally:
            bucket.go_on()
        assert counted == 1_000_000 and len(first.result(60)["id"]) == 10
    own.close()


@pytest.mark.parametrize("ending", ["pass", "sys.exit(0)", "del loader, batches", "batches.close()"])
def test_an_interpreter_that_ends_in_an_epoch_is_gone_within_a_second(store, ending):
    process = start(f"""
dataset = shardd.StreamingDataset(sys.argv[1], format="numpy")
loader = shardd.DataLoader(dataset, batch_size=10, num_workers=4)
batches = iter(loader)
next(batches)
assert threads() > 4
print("ending", flush=True)
{ending}
""", store)
    try:
        assert process.stdout.readline() == "ending\n", process.stderr.read()
        began = time.monotonic()
        assert process.wait(10) == 0
        assert time.monotonic() - began < 1
    finally:
        process.kill()
        process.wait()


def test_an_interpreter_ends_with_an_error_of_its_own_while_a_loader_reads(script, store):
    done = script(PRELUDE + """
for batch in shardd.DataLoader(shardd.StreamingDataset(sys.argv[1], format="numpy"), batch_size=10):
    raise LookupError("of the training loop")
""", store, check=False)
    assert done.returncode == 1 and "LookupError: of the training loop" in done.stderr


def test_a_cell_that_is_run_again_and_again_gathers_no_threads(store):
    """As in a notebook: the loader of the last run is lost when its name is given to the next one."""
    def cell():
        global kept
        kept = loader(store, batch_size=10)
        for number, _ in enumerate(kept):
            if number == 2:
                break

    cell()
    cell()
    before = len(own_threads())
    for _ in range(20):
        cell()
    assert len(own_threads()) <= before
    kept.close()


def test_closing_a_loader_ends_its_threads_and_it_can_be_used_again(store):
    before = own_threads()
    own = loader(store, batch_size=10, num_workers=3)
    batches = iter(own)
    first = ids([next(batches) for _ in range(3)])
    assert len(own_threads()) > len(before)
    own.close()
    own.close()
    assert own_threads() <= before
    assert sorted(first + ids(batches)) == EVERY
    assert own.stats()["samples"] > 0


def test_nothing_is_left_in_shared_memory_by_a_process_that_is_killed(store):
    before = set(os.listdir("/dev/shm"))
    process = start("""
batches = iter(shardd.DataLoader(shardd.StreamingDataset(sys.argv[1], format="numpy", batch_size=10), num_workers=2))
kept = [next(batches) for _ in range(3)]
print("reading", flush=True)
sys.stdin.readline()
""", store)
    try:
        assert process.stdout.readline() == "reading\n", process.stderr.read()
        own = {name for name in set(os.listdir("/dev/shm")) - before if str(process.pid) in name or "shardd" in name}
        assert own == set()
    finally:
        process.kill()
        process.wait()


ENDS = """
import gc, sys, pickle
import torch, torch.utils.data, shardd

def read():
    dataset = shardd.StreamingDataset(sys.argv[1], batch_size=100)
    pickle.loads(pickle.dumps(dataset))
    for method in ("fork", "forkserver"):
        batches = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context=method)
        assert sum(len(batch["id"]) for batch in batches) == 1003
    return dataset

if __name__ == "__main__":
    read()
    gc.collect()
    kept = read()  # to the end of the interpreter
"""


def test_datasets_that_are_dropped_leave_no_file_open(store, tmp_path):
    (tmp_path / "ends.py").write_text(ENDS)
    done = run([sys.executable, "-W", "always::ResourceWarning", str(tmp_path / "ends.py"), store])
    assert "ResourceWarning" not in done.stderr, done.stderr


def test_a_loader_can_be_iterated_by_another_thread_than_the_one_that_made_it(store):
    from concurrent.futures import ThreadPoolExecutor

    loaders = [loader(store, batch_size=50) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert all(sorted(read) == EVERY for read in pool.map(ids, loaders))
