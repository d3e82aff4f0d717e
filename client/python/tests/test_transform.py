"""Python's work in processes: the same batches, in the same order, and every end is a quick one."""

import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections import UserDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import forkserver

import numpy as np
import pytest
import torch

import shardd
from helpers import EVERY, PLAN, ids, loader, own_threads, run, runs
from shardd import _transform


def double(sample):
    return {"id": sample["id"] * 2, "image": sample["image"].float() / 255}


def jitter(sample):
    """Later batches are often done before earlier ones."""
    time.sleep(int(sample["id"]) % 7 * 1e-4)
    return {"id": sample["id"]}


def listed(samples):
    return [sample["id"] for sample in samples]


def fail(sample):
    if int(sample["id"]) == 500:
        raise LookupError("of sample 500")
    return sample


def die(sample):
    if int(sample["id"]) == 500:
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


def end_fork_server(sample):
    """Its process continues without the fork server, and takes a minute."""
    if int(sample["id"]) == 500:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    return sample


def leave(sample):
    os._exit(3)


done = 0


def slow_after_first(sample):
    """Each process makes one batch, and takes a minute for a sample of the next."""
    global done
    if done == 32:
        time.sleep(60)
    done += 1
    return sample


def process(sample):
    return {"id": torch.tensor(os.getpid())}


def in_processes(store, transform=None, count=2, **how):
    return loader(store, **{"batch_size": 32, "transform": transform, "transform_processes": count, **how})


def end_within(began: float, seconds: float = 20) -> None:
    """No test waited for a task of a minute."""
    assert time.monotonic() - began < seconds


def test_processes_make_the_same_batches_in_the_same_order(store):
    inline = loader(store, batch_size=32, transform=double)
    own = in_processes(store, double)
    for _ in range(2):
        for one, other in zip(inline, own, strict=True):
            assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    own.close()
    assert ids(in_processes(store, jitter, 3)) == ids(loader(store, batch_size=32))


def test_the_work_is_done_by_as_many_processes_and_not_by_this_one(store):
    own = in_processes(store, process, 2)
    done_by = set(ids(own))
    assert 1 <= len(done_by) <= 2 and os.getpid() not in done_by
    done_by |= set(ids(own))
    assert len(done_by) <= 2, "they stay for the next epoch"
    own.close()
    assert not done_by & set(ids(own))
    own.close()


def test_batches_go_there_and_back_in_memory_that_is_used_again(store):
    made = loader(store, transform=double, transform_processes=2)
    micro_batches = 0
    for _ in range(3):
        batches = list(made)
        micro_batches += len(batches)
        assert sorted(ids(batches)) == [2 * number for number in EVERY]
        del batches
    _, blocks = made._processes._batches._map()
    there, used = blocks.counts()
    assert 0 < there < 2 * 2 * micro_batches, "of two columns, there and back"
    # The last batch may have to stand in for one without samples, and processes may still hold their last ones.
    assert used <= 2 + 2 * 4


def test_another_transform_is_called_from_then_on(store):
    own = in_processes(store, double)
    assert sorted(ids(own)) == [2 * number for number in EVERY]
    own.transform = jitter
    assert sorted(ids(own)) == EVERY
    own.close()


def makespan(durations, count, window_of):
    """Seconds until all batches were handed out in order: `count` processes, `window_of(note)` many in work at once."""
    free, ends, handed, now = [0.0] * count, [], 0, 0.0
    note, size = window_of()
    while handed < len(durations):
        while len(ends) < len(durations) and len(ends) - handed < size():
            begins = max(now, min(free))
            free[free.index(min(free))] = begins + durations[len(ends)]
            ends.append(begins + durations[len(ends)])
        now = max(now, ends[handed])
        note(durations[handed])
        handed += 1
    return now


@pytest.mark.parametrize("seed", range(20))
def test_slow_batches_hold_up_no_others(seed):
    draw = random.Random(seed)
    count, slowness = draw.randint(2, 8), draw.uniform(2, 12)
    durations = [slowness if draw.random() < 0.04 else draw.uniform(0.8, 1.2) for _ in range(3000)]

    def learned():
        window = _transform.Window(count)
        return lambda seconds: window.note(seconds, 1000), lambda: window.size

    least = max(sum(durations) / count, max(durations))
    assert makespan(durations, count, learned) < 1.06 * least
    fixed = makespan(durations, count, lambda: (lambda _: None, lambda: 2 * count))
    assert makespan(durations, count, learned) <= fixed


def test_a_window_is_bounded_by_number_and_bytes():
    window = _transform.Window(4)
    assert window.size == 8
    for seconds in [*[1.0] * 200, 100.0]:
        window.note(seconds, 1 << 10)
    assert window.size == 64
    for seconds in [*[1.0] * 200, 100.0]:
        window.note(seconds, 16 << 20)
    assert 8 < window.size <= 20, "256 MiB of results"
    for _ in range(256):
        window.note(1.0, 1 << 10)
    assert window.size == 8, "of an even load"


def rarely_slow(sample):
    """One sample in some batches costs a thousand times as much as the others."""
    if int(sample["id"]) % 97 == 0:
        sum(range(3_000_000))
    return {"id": sample["id"]}


def test_more_batches_are_in_work_when_some_are_slow_and_their_order_stays(store):
    expected = ids(loader(store))
    made = loader(store, transform=rarely_slow, transform_processes=2)
    assert ids(made) == expected
    assert made._processes.window.size >= 8, "an even load has 4 or 5"


def test_the_window_of_an_even_load_stays_small():
    draw, window = random.Random(1), _transform.Window(4)
    for _ in range(300):
        window.note(draw.uniform(0.95, 1.05), 1 << 10)
    assert window.size == window.least == 8


def test_a_result_that_is_done_does_not_wait_for_reads():
    """The reader counts how many batches were read before each result."""
    read = 0

    def items():
        nonlocal read
        for number in range(100):
            read += 1
            yield number, (0, number)

    class Done:
        """Processes that are done at once, with a large window."""

        window = _transform.Window(4)

        def begin(self, task):
            future = Future()
            future.set_result(task)
            return future

        def result(self, begun):
            return begun.result()

    for seconds in [*[1.0] * 200, 100.0]:
        Done.window.note(seconds, 1)
    assert Done.window.size == 64
    doing, before = Done(), []
    for number, result in _transform.in_order(lambda: doing, items()):
        before.append(read)
        assert result() == (0, number)
    assert before[0] <= 8 and all(later - earlier <= 2 for earlier, later in zip(before, before[1:]))


@dataclass
class Sample:
    image: torch.Tensor


@pytest.mark.parametrize(
    "batch, size",
    [
        ({"a": torch.zeros(10), "b": [b"123", "4567"]}, 47),
        ([np.zeros(5, np.uint8), Sample(torch.zeros(2, 2))], 21),
        (UserDict(a=torch.zeros(3)), 12),
        (torch.eye(3).to_sparse(), None),
        ({"a": object()}, None),
    ],
)
def test_the_size_of_a_batch_is_known_or_said_to_be_unknown(batch, size):
    assert _transform.bytes_of(batch) == size


def test_batches_of_unknown_size_are_not_begun_further_ahead():
    window = _transform.Window(4)
    for seconds in [*[1.0] * 200, 100.0]:
        window.note(seconds, None)
    assert window.size == window.least


def sparse(samples):
    return torch.stack([sample["image"] for sample in samples]).flatten(1).to_sparse()


def nested(samples):
    return torch.nested.nested_tensor([torch.ones(1 + int(sample["id"]) % 3) for sample in samples])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("collate", [sparse, nested])
def test_a_collate_fn_may_make_tensors_that_are_no_plain_memory(store, collate):
    here = loader(store, collate_fn=collate)
    there = loader(store, collate_fn=collate, transform_processes=1)
    for _, expected, made in zip(range(3), here, there):
        assert made.is_nested == expected.is_nested and made.layout == expected.layout
        assert all(torch.equal(one, other) for one, other in zip(dense(made), dense(expected)))


def dense(tensor):
    return tensor.unbind() if tensor.is_nested else [tensor.to_dense()]


@pytest.mark.parametrize("limit", ["RLIMIT_FSIZE", "RLIMIT_AS"])
def test_limits_on_files_and_addresses_leave_the_way_of_pytorch(store, tmp_path, limit):
    (tmp_path / "training.py").write_text("""
import resource, sys, torch, shardd
def same(sample): return sample
if __name__ == "__main__":
    size = 1 << 30
    if sys.argv[2] == "RLIMIT_AS":
        with open("/proc/self/statm") as statm:
            size = int(statm.read().split()[0]) * resource.getpagesize() + (12 << 30)
    resource.setrlimit(getattr(resource, sys.argv[2]), (size, size))
    dataset = shardd.StreamingDataset(sys.argv[1], q=0.5, partitions=48)
    loader = shardd.DataLoader(dataset, batch_size=16, transform=same, transform_processes=1)
    assert sum(len(batch["id"]) for batch in loader) == 1003
    assert loader._processes._batches is None
""")
    run([sys.executable, str(tmp_path / "training.py"), store, limit])


def test_a_collate_fn_without_a_transform_is_called_there_too(store):
    own = in_processes(store, collate_fn=listed)
    assert sorted(int(number) for batch in own for number in batch) == EVERY
    own.close()


def test_a_state_counts_what_was_handed_out_and_not_what_is_being_transformed(store):
    own = in_processes(store, double)
    batches = iter(own)
    read = [next(batches)["id"] for _ in range(5)]
    state = own.state_dict()
    assert state["position"] == 5 * 32
    restored = in_processes(store, double)
    restored.load_state_dict(state)
    assert [2 * number for number in EVERY] == sorted(torch.cat(read).tolist() + ids(restored))
    # And a loader that was closed continues, as without processes.
    own.close()
    assert sorted(torch.cat(read).tolist() + ids(batches)) == [2 * number for number in EVERY]
    own.close()
    restored.close()


def test_an_error_comes_with_the_traceback_of_the_process_and_the_loader_can_be_used_again(store):
    own = in_processes(store, fail)
    with pytest.raises(LookupError, match="of sample 500") as raised:
        list(own)
    assert "in fail" in str(raised.value.__cause__) and "test_transform.py" in str(raised.value.__cause__)
    own.transform = double
    assert len(ids(own)) == len(EVERY)
    own.close()


def test_a_process_that_is_killed_is_named(store):
    own = in_processes(store, die)
    with pytest.raises(RuntimeError, match=r"process \d+ of transform was killed by SIGKILL; is there too little memory\?"):
        list(own)
    own.transform = double
    assert len(ids(own)) == len(EVERY)
    own.close()
    own.transform = leave
    with pytest.raises(RuntimeError, match=r"process \d+ of transform ended by itself, with exit status 3"):
        list(own)
    own.close()


SERVER_KILLED = r"the fork server of transform's processes, process \d+, was killed by SIGKILL; is there too little memory\?"


@pytest.mark.parametrize("count", [1, 2])
def test_a_fork_server_that_is_killed_is_named(store, count):
    own = in_processes(store, end_fork_server, count)
    began = time.monotonic()
    with pytest.raises(_transform.TransformDied, match=SERVER_KILLED):
        list(own)
    end_within(began)
    own.transform = double
    assert len(ids(own)) == len(EVERY), "another one is started"
    own.close()


def test_a_fork_server_that_is_killed_before_it_has_started_a_process_is_named(store, monkeypatch):
    forkserver.ensure_running()
    server = forkserver._forkserver._forkserver_pid
    os.kill(server, signal.SIGSTOP)
    read_signed = forkserver.read_signed

    def kill_first(descriptor):
        os.kill(server, signal.SIGKILL)
        return read_signed(descriptor)

    own = in_processes(store, double)
    with monkeypatch.context() as patched:
        patched.setattr(forkserver, "read_signed", kill_first)
        with pytest.raises(_transform.TransformDied, match=SERVER_KILLED):
            list(own)
    assert len(ids(own)) == len(EVERY), "another one is started"
    own.close()


def test_what_cannot_be_sent_to_processes_is_refused_with_the_way_out(store):
    with pytest.raises(TypeError, match="cannot be sent to processes.*top level of a module, or pass transform_processes=0"):
        next(iter(in_processes(store, lambda sample: sample)))
    with pytest.raises(ValueError, match="transform_processes counts processes"):
        in_processes(store, double, -1)


def test_ranks_without_samples_in_a_last_step_get_a_stand_in_that_was_transformed(store):
    dataset = shardd.StreamingDataset(store, limit=17, rank=0, world_size=1, **PLAN)
    own = shardd.DataLoader(dataset, 1, virtual_ranks=16, transform=double, transform_processes=1)
    batches = [(batch, own.weight) for batch in own]
    assert len(batches) == len(own) == 32 and sum(weight > 0 for _, weight in batches) == 17
    assert all(batch["image"].dtype == torch.float32 and len(batch["id"]) == 1 for batch, _ in batches)
    own.close()


PRELUDE = """
import sys, time
import shardd, test_transform
dataset = shardd.StreamingDataset(sys.argv[1])
own = shardd.DataLoader(dataset, 32, transform=getattr(test_transform, sys.argv[2]), transform_processes=2)
"""


def test_a_loop_that_is_left_does_not_wait_for_what_is_being_done(store):
    own = in_processes(store, slow_after_first, 2)
    batches = iter(own)
    next(batches)
    began = time.monotonic()
    batches.close()
    own.close()
    end_within(began)


@pytest.mark.parametrize("end", ["pass", "raise LookupError('of the loop')"])
def test_an_interpreter_that_ends_does_not_wait_for_them(script, store, end):
    done = script(PRELUDE + f"""
batches = iter(own)
next(batches)
print(time.monotonic(), flush=True)
{end}
""", store, "slow_after_first", check=False, timeout=50)
    assert done.returncode == (1 if "raise" in end else 0), done.stderr
    end_within(float(done.stdout))


def test_an_interruption_ends_a_loop_that_waits_for_processes(store):
    import subprocess
    import sys

    code = PRELUDE + """
batches = iter(own)
next(batches)
try:
    print("reading", flush=True)
    next(batches); next(batches); next(batches)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    command = [sys.executable, "-c", code, store, "slow_after_first"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0)
    try:
        assert process.stdout.readline() == "reading\n"
        began = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: everybody gets it
        assert process.stdout.readline() == "interrupted\n" and process.wait(30) == 0
        end_within(began)
    finally:
        process.kill()
        process.wait()


def test_processes_and_threads_end_with_the_loader(store):
    before = own_threads()
    own = in_processes(store, process)
    done_by = set(ids(own))
    own.close()
    for pid in done_by:
        # Gone, or about to be waited for by who started it.
        deadline = time.monotonic() + 20
        while runs(pid):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert len(own_threads()) <= len(before) + 2, "at most those of multiprocessing stay"


# --- random numbers
# -------------------------------------------------------------------------------------------------------


def draw(sample):
    drawn = [torch.rand(()).item(), random.random(), float(np.random.rand())]
    return {"id": sample["id"], "drawn": torch.tensor(drawn, dtype=torch.float64)}


def draws(own) -> dict[int, tuple[float, ...]]:
    """The random numbers that each sample was given."""
    given = {}
    for batch in own:
        given |= zip(batch["id"].tolist(), map(tuple, batch["drawn"].tolist()))
    own.close()
    return given


def test_no_two_samples_draw_the_same_and_the_number_of_processes_changes_nothing(store):
    torch.manual_seed(5)
    reference = draws(in_processes(store, draw, 4))
    assert len(reference) == len(EVERY)
    for kind in range(3):
        assert len({drawn[kind] for drawn in reference.values()}) == len(EVERY)
    for count in (0, 1):
        assert draws(in_processes(store, draw, count)) == reference, count
    torch.manual_seed(6)
    assert not set(draws(in_processes(store, draw, 2)).values()) & set(reference.values())


def test_epochs_draw_differently_and_a_restored_loader_draws_what_the_first_one_would_have(store):
    torch.manual_seed(5)
    own = in_processes(store, draw)
    batches = iter(own)
    first = [next(batches)["drawn"].tolist() for _ in range(6)]
    state = own.state_dict()
    rest = [batch["drawn"].tolist() for batch in batches]
    following = [batch["drawn"].tolist() for batch in own]
    own.close()
    assert first[0] != following[0]
    # Of another script run, which has drawn before.
    torch.manual_seed(5)
    torch.rand(7), random.random()
    restored = in_processes(store, draw, 1)
    restored.load_state_dict(state)
    assert [batch["drawn"].tolist() for batch in restored] == rest
    assert [batch["drawn"].tolist() for batch in restored] == following
    restored.close()


def test_ranks_draw_for_a_global_batch_what_one_rank_draws(store):
    torch.manual_seed(5)
    both = [loader(store, rank, 2, batch_size=None, global_batch_size=64, transform=draw) for rank in range(2)]
    one = loader(store, batch_size=None, global_batch_size=64, transform=draw)
    assert draws(both[0]) | draws(both[1]) == draws(one)


def test_a_transform_in_this_process_leaves_the_generators_of_the_training_alone(store):
    def state():
        return torch.get_rng_state().tolist(), random.getstate(), [list(part) for part in np.random.get_state()[:2]]

    before = state()
    assert len(draws(loader(store, transform=draw))) == len(EVERY)
    with pytest.raises(LookupError):
        list(loader(store, transform=fail))
    assert state() == before


def draw_slowly(sample):
    drawn = draw(sample)
    time.sleep(1e-4)  # the other thread's turn
    return drawn


def test_loaders_of_two_threads_draw_as_one_after_the_other_and_restore_the_generators(store):
    def both() -> list[shardd.DataLoader]:
        return [loader(store, rank, 2, transform=draw_slowly) for rank in range(2)]

    before = random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()
    reference = [draws(own) for own in both()]
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(draws, both(), timeout=60)) == reference
    assert (random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()) == before


def test_a_loader_takes_the_seed_of_the_process_while_another_thread_draws(store, monkeypatch):
    torch.manual_seed(5)
    reference = draws(loader(store, transform=draw))
    asked, begun, done = threading.Event(), threading.Event(), threading.Event()
    initial_seed = torch.initial_seed
    monkeypatch.setattr(torch, "initial_seed", lambda: (asked.set(), initial_seed())[1])

    def hold() -> None:
        with _transform.seeded(3):
            begun.set()
            done.wait(60)

    with ThreadPoolExecutor(2) as threads:
        holder = threads.submit(hold)
        assert begun.wait(60)
        drawn = threads.submit(draws, loader(store, transform=draw))
        # It may ask for the seed only once the other thread is done.
        was_asked = asked.wait(0.5)
        done.set()
        assert drawn.result(60) == reference and not was_asked
        holder.result(60)


def test_a_transform_may_draw_from_a_loader_with_a_transform_and_so_may_a_child_of_its_process(store):
    inner = loader(store, batch_size=1, transform=draw)

    def twice(sample, between=lambda: None):
        before = random.random()
        between()
        return {"id": sample["id"], "drawn": torch.tensor([before, random.random()], dtype=torch.float64)}

    def nested(sample):
        return twice(sample, lambda: next(iter(inner)))

    plain, nesting = (next(iter(loader(store, transform=transform)))["drawn"].tolist() for transform in (twice, nested))
    assert plain == nesting

    # A fork while another thread draws.
    begun, done = threading.Event(), threading.Event()

    def hold() -> None:
        with _transform.seeded(3):
            begun.set()
            done.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert begun.wait(60)
        child = multiprocessing.get_context("fork").Process(target=_draw_once)
        child.start()
        child.join(30)
        assert child.exitcode == 0
    finally:
        done.set()
        holder.join()
        child.kill()


def _draw_once() -> None:
    with _transform.seeded(4):
        random.random()


UNGUARDED = """
import sys
import shardd, test_transform
loader = shardd.DataLoader(shardd.StreamingDataset(sys.argv[1]), 32, transform=test_transform.double, transform_processes=2)
print(sum(len(batch["id"]) for batch in loader))
"""


def test_a_script_without_a_main_guard_is_asked_for_one(store, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(UNGUARDED)
    done = run([sys.executable, str(script), store], check=False)
    assert done.returncode == 1
    assert 'exit status 1; does the script train outside `if __name__ == "__main__":`?' in done.stderr
    guarded = UNGUARDED.replace("loader =", 'if __name__ == "__main__":\n    loader =').replace("\nprint", "\n    print")
    script.write_text(guarded)
    assert int(run([sys.executable, str(script), store]).stdout) == len(EVERY)
