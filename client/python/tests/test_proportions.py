"""Streams whose proportions change: by a schedule, or by the training."""

import itertools
import json
import pickle
import re
from collections import Counter

import pytest

import shardd
from helpers import in_ranks
from test_documents import PAGE

# Name and first number of the samples of each stream; a stream has 300.
NAMES = ("web", "books", "maths")
SAMPLES = 300


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> str:
    where = str(tmp_path_factory.mktemp("proportions") / "store")
    for number, name in enumerate(NAMES):
        shardd.from_iter(({"id": 1000 * number + sample} for sample in range(SAMPLES)), where, name=name, shard_size="4KiB")
    return where


def dataset(store: str, *shares, **how) -> shardd.StreamingDataset:
    streams = [shardd.Stream(store, dataset=name, proportion=share) for name, share in zip(NAMES, shares)]
    return shardd.StreamingDataset(streams=streams, epoch_size=how.pop("epoch_size", 240), **how)


def read(batches) -> list[int]:
    return [number for batch in batches for number in batch["id"].tolist()]


def epochs(loader: shardd.DataLoader, count: int) -> list[int]:
    return [number for _ in range(count) for number in read(loader)]


def counts(numbers: list[int]) -> list[int]:
    counted = Counter(number // 1000 for number in numbers)
    return [counted[stream] for stream in range(len(NAMES))]


def check_streams_are_whole(numbers: list[int]) -> None:
    """Each stream's own epochs are read one after the other, without a repeat."""
    for stream in range(len(NAMES)):
        own = [number for number in numbers if number // 1000 == stream]
        for start in range(0, len(own), SAMPLES):
            epoch = own[start : start + SAMPLES]
            assert len(set(epoch)) == len(epoch), f"{NAMES[stream]} repeats a sample before it was read whole"


def test_a_schedule_changes_the_shares_at_its_samples_for_any_number_of_ranks(store):
    # Within the first epoch, at the end of the second, and within the fourth.
    shares = [(0, 0.9), (100, 0.5), (480, 0), (800, 0.1)], [(0, 0.1), (100, "0.5"), (480, 0.6)], [(480, 0.4), (800, 0.3)]
    numbers = epochs(shardd.DataLoader(dataset(store, *shares), batch_size=8), 4)
    assert counts(numbers[:100]) == [90, 10, 0]
    assert counts(numbers[100:480]) == [190, 190, 0]
    assert counts(numbers[480:800]) == [0, 192, 128]
    assert counts(numbers[800:]) == [16, 96, 48]
    check_streams_are_whole(numbers)

    by_step = {}
    for rank in range(3):
        own = shardd.DataLoader(dataset(store, *shares, rank=rank, world_size=3), global_batch_size=8, virtual_ranks=4)
        for epoch in range(4):
            for batch in own:
                by_step.setdefault((epoch, own.step), []).extend(read([batch]) if own.weight else [])
    steps = [sorted(numbers[start : start + 8]) for start in range(0, len(numbers), 8)]
    assert [sorted(by_step[step]) for step in sorted(by_step)] == steps


def test_a_linear_schedule_reads_as_many_samples_as_the_line(store):
    schedule = shardd.linear_schedule(0.8, 0.2, 600, begin=120, parts=12)
    assert schedule[:3] == [(0, 0.8), (120, 0.775), (170, 0.725)] and schedule[-1] == (720, 0.2)
    assert shardd.linear_schedule(0.8, 0.2, 6e2, begin=120.0, parts=12) == schedule
    assert shardd.Stream(store, proportion=[(0.0, 0.9), (1e6, 0.5)]).changes == ((1_000_000, "0.5"),)
    rest = [(begin, 1 - share) for begin, share in schedule]
    numbers = epochs(shardd.DataLoader(dataset(store, schedule, rest), batch_size=30), 4)
    assert abs(counts(numbers[120:720])[0] - 300) <= 12
    assert counts(numbers[:120])[0] == 96 and abs(counts(numbers[720:])[0] - 48) <= 1


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize("last_batch", ["short", "carry"])
def test_proportions_that_a_training_sets_hold_from_the_next_step_and_are_part_of_its_state(store, last_batch, processes):
    def make(world: int = 1, rank: int = 0):
        how = {"transform": doubled, "transform_processes": processes} if world == 1 else {}
        data = dataset(store, 0.6, 0.3, 0.1, rank=rank, world_size=world)
        return shardd.DataLoader(data, global_batch_size=16, virtual_ranks=4, last_batch=last_batch, **how)

    def steps(own):
        while True:
            step = []
            for batch in own:
                step += read([batch]) if own.weight else []
                if own.is_last_micro:
                    yield step
                    step = []

    own, given, states = make(), [], []
    for number, step in enumerate(itertools.islice(steps(own), 40)):
        given.append(step)
        if number == 6:
            own.set_proportions([0.1, 0.1, 0.8])
        if number == 20:
            own.set_proportions([1 / 3, 1 / 3, 1 / 3])
        states.append(json.loads(json.dumps(own.state_dict())))
    flat = sum(given, [])
    before, after = sum(map(len, given[:7])), sum(map(len, given[:21]))
    assert [abs(count - share * before) <= 2 for count, share in zip(counts(flat[:before]), (0.6, 0.3, 0.1))] == [True] * 3
    between = counts(flat[before:after])
    assert [abs(count - share * (after - before)) <= 2 for count, share in zip(between, (0.1, 0.1, 0.8))] == [True] * 3, between
    check_streams_are_whole(flat)
    assert states[6]["proportions"] == [[before, ["0.1", "0.1", "0.8"]]]
    assert states[5].get("proportions") is None and len(states[30]["proportions"]) == 2
    own.close()

    # From any of these states, any number of ranks reads what follows until the next change.
    for number, until in ((4, 7), (6, 21), (11, 21), (20, 40), (33, 40)):
        for world in (1, 2, 3):
            rest = [[] for _ in range(number + 1, until)]
            for rank in range(world):
                restored = make(world, rank)
                restored.load_state_dict(states[number])
                for into, step in zip(rest, steps(restored)):
                    into.extend(step)
                restored.close()
            assert [sorted(step) for step in rest] == [sorted(step) for step in given[number + 1 : until]], (number, world)


def doubled(sample):
    sample["twice"] = sample["id"] * 2
    return sample


def test_a_set_proportion_takes_the_place_of_a_schedule_and_moves_no_other_loader(store):
    data = dataset(store, [(0, 1), (160, 0.5)], [(0, 0), (160, 0.5)], 1)
    first, second = shardd.DataLoader(data, batch_size=8), shardd.DataLoader(data, batch_size=8)
    numbers = []
    for batch in first:
        numbers += read([batch])
        if first.step == 9:
            first.set_proportions([0, 0, 1])
    assert counts(numbers[80:]) == [0, 0, 160]
    scheduled = read(second)
    assert scheduled[:80] == numbers[:80] and counts(scheduled[160:240]) == [20, 20, 40]
    assert data.plan == second.dataset.plan != first.dataset.plan
    # Between epochs, too.
    first.set_proportions([1, 0, 0])
    assert counts(read(first)) == [240, 0, 0]
    assert pickle.loads(pickle.dumps(first.dataset)).plan == first.dataset.plan


def test_states_with_proportions_are_refused_where_they_do_not_fit(store):
    own = shardd.DataLoader(dataset(store, 0.6, 0.3, 0.1), batch_size=8)
    for _ in own:
        own.set_proportions([1, 1, 1])
        break
    state = own.state_dict()
    with pytest.raises(shardd.StateMismatch, match="follows mixture"):
        shardd.DataLoader(dataset(store, 0.5, 0.4, 0.1), batch_size=8).load_state_dict(state)
    with pytest.raises(shardd.StateMismatch, match="this dataset has no streams"):
        shardd.DataLoader(shardd.StreamingDataset(store, dataset="web"), batch_size=8).load_state_dict(state)
    two = shardd.StreamingDataset(streams=[shardd.Stream(store, dataset=name, proportion=1) for name in NAMES[:2]])
    with pytest.raises(shardd.StateMismatch, match="3 proportions for 2 sources.*do not fit"):
        shardd.DataLoader(two, batch_size=8).load_state_dict(state)
    forced = shardd.DataLoader(two, batch_size=8)
    with pytest.warns(UserWarning, match="the proportions of the state are left out"):
        forced.load_state_dict(state, force=True)
    assert forced.state_dict()["position"] == 8
    fresh = shardd.DataLoader(dataset(store, 0.6, 0.3, 0.1), batch_size=8)
    fresh.load_state_dict(state)
    assert fresh.dataset.plan == own.dataset.plan
    # A dataset that PyTorch's loader reads takes it, too.
    alone = dataset(store, 0.6, 0.3, 0.1, batch_size=8)
    alone.load_state_dict(state)
    assert read(alone)[:16] == read(fresh)[:16]


@pytest.mark.parametrize(
    "share, message",
    [
        ([], "no schedule"),
        ([(5, 0.1), (5, 0.2)], "ascending from 0"),
        ([(-1, 0.1)], "ascending from 0"),
        ([(0, "much")], "'much' is not a number"),
        ([0.5, 0.5], "pairs of a sample's number and a share"),
        ([(0, 0.5), (10, -1)], "is not a decimal"),
    ],
)
def test_what_is_no_schedule_is_refused_with_the_way_out(store, share, message):
    with pytest.raises(ValueError, match=message):
        dataset(store, share, 1, 1)


def test_proportions_are_set_by_name_of_the_fault(store):
    own = shardd.DataLoader(dataset(store, 0.6, 0.3, 0.1, rank=0, world_size=1), batch_size=4, virtual_ranks=2)
    with pytest.raises(ValueError, match="no step is done yet: give these proportions to the streams"):
        own.set_proportions([1, 1, 1])
    batches = iter(own)
    next(batches)
    with pytest.raises(RuntimeError, match="call set_proportions when is_last_micro is true"):
        own.set_proportions([1, 1, 1])
    next(batches)
    for shares, message in (([1, 1], "2 proportions are given for 3 streams"), ([0, 0, 0], "are all 0"), ([1, 1, float("nan")], "not a decimal|not a number")):
        with pytest.raises(ValueError, match=message):
            own.set_proportions(shares)
    assert len(read(batches)) == 240 - 8, "a refused call changed the order"
    with pytest.raises(ValueError, match="this one has none"):
        shardd.DataLoader(shardd.StreamingDataset(store, dataset="web"), batch_size=8).set_proportions([1])
    repeated = shardd.StreamingDataset(streams=[shardd.Stream(store, dataset=name, repeat=1) for name in NAMES])
    with pytest.raises(ValueError, match="have repeat, not proportions"):
        shardd.DataLoader(repeated, batch_size=8).set_proportions([1, 1, 1])
    with pytest.raises(ValueError, match="changes at sample 240, and with shuffle=False"):
        dataset(store, [(0, 1), (240, 2)], 1, 1, shuffle=False)
    stored = dataset(store, 1, 1, 1, shuffle=False)
    with pytest.raises(ValueError, match="shuffle=False"):
        shardd.DataLoader(stored, batch_size=8).set_proportions([1, 1, 1])


def test_the_examples_of_the_page_run(store, monkeypatch, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    example, training = (next(block for block in blocks if word in block) for word in ("linear_schedule", "set_proportions"))
    for name in NAMES:
        shardd.from_iter(({"id": number} for number in range(SAMPLES)), str(tmp_path / f"{name}-store"), name=name)
    monkeypatch.chdir(tmp_path)

    def step(batch):
        return 1.0 + batch["id"].float() / SAMPLES

    names = {"shardd": shardd, "step": step}
    exec(example, names)
    assert len(names["dataset"]._mixture.native.id) == 64 and names["dataset"].num_samples == 3 * SAMPLES
    exec(training.replace("256", "10").replace("1000 == 999", "20 == 19"), names)
    assert len(names["loader"].state_dict()["proportions"]) == 4


def _rank(rank: int, world: int, store: str) -> list[list[int]]:
    own = shardd.DataLoader(dataset(store, 0.6, 0.3, 0.1), global_batch_size=16, virtual_ranks=4)
    given, step = [], []
    for batch in own:
        step += read([batch])
        if own.is_last_micro:
            given.append(step)
            step = []
            # Each rank measures something else.
            if own.step % 3 == 2:
                own.set_proportions([1 + rank, 1, own.step])
    return given


def _out_of_step(rank: int, world: int, store: str) -> str:
    own = shardd.DataLoader(dataset(store, 0.6, 0.3, 0.1), batch_size=4)
    for _ in own:
        if own.step == 2 + rank:
            own.set_proportions([1, 1, 1])


def test_ranks_that_set_proportions_after_different_steps_are_refused(store):
    for error in in_ranks(_out_of_step, 2, store):
        assert "after different steps: rank 0 at sample 24, and rank 1 at sample 32" in str(error)


def test_the_ranks_of_a_process_group_follow_the_first(store):
    ranks = in_ranks(_rank, 2, store)
    steps = [sorted(sum(step, [])) for step in zip(*ranks, strict=True)]
    own, alone, step = shardd.DataLoader(dataset(store, 0.6, 0.3, 0.1, rank=0, world_size=1), global_batch_size=16, virtual_ranks=4), [], []
    for batch in own:
        step += read([batch])
        if own.is_last_micro:
            alone.append(sorted(step))
            step = []
            if own.step % 3 == 2:
                own.set_proportions([1, 1, own.step])
    assert steps == alone and sum(map(len, steps)) == 240
