"""Several datasets read as one."""

import itertools
import json
import pickle
import re
from collections import Counter

import pytest

import shardd
from test_documents import PAGE

# Name, first number, samples; books and code lie in one store, maths in another.
BOOKS, CODE, MATHS = ("books", 0, 400), ("code", 1000, 100), ("maths", 2000, 30)


def numbers(dataset) -> list[int]:
    _, first, samples = dataset
    return list(range(first, first + samples))


@pytest.fixture(scope="module")
def stores(tmp_path_factory) -> dict[str, str]:
    """Where each dataset is. Pictures have other columns than the rest, and games other classes."""
    home = tmp_path_factory.mktemp("streams")
    where = {name: str(home / place) for name, place in
             (("books", "one"), ("code", "one"), ("maths", "two"), ("pictures", "two"), ("games", "two"))}
    for dataset in (BOOKS, CODE, MATHS):
        rows = ({"id": number, "label": number % 3} for number in numbers(dataset))
        shardd.from_iter(rows, where[dataset[0]], name=dataset[0], classes={"label": list("abc")}, shard_size="4KiB")
    shardd.from_iter(({"id": n, "image": bytes(3)} for n in range(9)), where["pictures"], name="pictures")
    shardd.from_iter(({"id": n, "label": n % 2} for n in range(9)), where["games"], name="games", classes={"label": ["x", "y"]})
    return where


def stream(stores, name: str, **share) -> shardd.Stream:
    return shardd.Stream(stores[name], dataset=name, **share)


def mixed(stores, shares: dict, **how) -> shardd.StreamingDataset:
    return shardd.StreamingDataset(streams=[stream(stores, name, **share) for name, share in shares.items()], **how)


def proportions(stores, **how) -> shardd.StreamingDataset:
    shares = {"books": {"proportion": 0.6}, "code": {"proportion": 0.3}, "maths": {"proportion": 0.1}}
    return mixed(stores, shares, epoch_size=200, **how)


def read(batches) -> list[int]:
    return [number for batch in batches for number in batch["id"].tolist()]


def test_proportions_are_kept_in_every_epoch_and_every_prefix(stores):
    loader = shardd.DataLoader(proportions(stores), batch_size=10)
    counts = Counter()
    for before, number in enumerate(itertools.chain.from_iterable(read(loader) for _ in range(4)), 1):
        counts[number // 1000] += 1
        for source, share in enumerate((0.6, 0.3, 0.1)):
            assert abs(counts[source] - share * before) <= 2, (before, counts)
    assert counts == {0: 480, 1: 240, 2: 80}


def test_a_stream_goes_on_where_it_was_and_repeats_nothing_before_it_was_read_whole(stores):
    loader = shardd.DataLoader(proportions(stores), batch_size=16)
    every = [number for _ in range(10) for number in read(loader)]
    for dataset in (BOOKS, CODE, MATHS):
        name, first, samples = dataset
        own = [number for number in every if first <= number < first + samples]
        epochs = [own[start : start + samples] for start in range(0, len(own) // samples * samples, samples)]
        assert len(epochs) >= 3, name
        assert all(sorted(epoch) == numbers(dataset) for epoch in epochs), name
        assert epochs[0] != epochs[1] != epochs[2], name


def test_an_epoch_has_as_many_samples_as_repeat_and_choose_say(stores):
    dataset = mixed(stores, {"books": {"repeat": 0.5}, "code": {"repeat": 2}, "maths": {"choose": 45}})
    assert dataset.num_samples == 200 + 200 + 45
    loader = shardd.DataLoader(dataset, batch_size=20)
    assert len(loader) == 23
    for _ in range(2):
        epoch = read(loader)
        assert len(epoch) == 445
        assert Counter(number // 1000 for number in epoch) == {0: 200, 1: 200, 2: 45}
        assert sorted(number for number in epoch if 1000 <= number < 2000) == sorted(2 * numbers(CODE))


def test_a_stream_that_says_nothing_is_read_once(stores):
    dataset = mixed(stores, {"books": {}, "maths": {}})
    assert sorted(read(shardd.DataLoader(dataset, batch_size=32))) == numbers(BOOKS) + numbers(MATHS)


def test_a_loader_tells_the_stream_of_every_sample(stores):
    loader = shardd.DataLoader(proportions(stores), batch_size=7)
    for batch in loader:
        assert loader.streams == [number // 1000 for number in batch["id"].tolist()]
    plain = shardd.DataLoader(shardd.StreamingDataset(stores["maths"], dataset="maths"), batch_size=7)
    next(iter(plain))
    assert plain.streams == []


@pytest.mark.parametrize("last_batch", ["short", "drop", "wrap", "carry"])
def test_a_restored_loader_goes_on_at_the_very_sample_of_a_mixture(stores, last_batch):
    def batches(loader):
        return itertools.chain.from_iterable(iter(lambda: iter(loader), None))

    def make():
        return shardd.DataLoader(proportions(stores), batch_size=23, last_batch=last_batch)

    own = make()
    states, given = [own.state_dict()], []
    for batch in itertools.islice(batches(own), 20):
        given.append(batch["id"].tolist())
        states.append(own.state_dict())
    for number in (0, 1, 4, 7, 8, 9, 17):
        restored = make()
        restored.load_state_dict(json.loads(json.dumps(states[number])))
        tail = [batch["id"].tolist() for batch in itertools.islice(batches(restored), 20 - number)]
        assert tail == given[number:], f"after {number} batches"
        restored.close()


def test_two_ranks_share_every_step_of_a_mixture_and_others_go_on_with_their_state(stores):
    def part(world, state, steps):
        steps_read, states = {}, []
        for rank in range(world):
            dataset = proportions(stores, rank=rank, world_size=world)
            own = shardd.DataLoader(dataset, batch_size=4, virtual_ranks=6)
            if state is not None:
                own.load_state_dict(state)
            for batch in own:
                steps_read.setdefault(own.step, []).extend(read([batch]) if own.weight else [])
                if own.is_last_micro and own.step + 1 >= steps:
                    break
            states.append(own.state_dict())
            own.close()
        assert all(state == states[0] for state in states)
        return {step: sorted(numbers) for step, numbers in steps_read.items()}, states[0]

    whole, _ = part(1, None, 99)
    assert sum(map(len, whole.values())) == 200 and len(whole) == 9
    assert part(2, None, 99)[0] == whole
    some, state = part(2, None, 4)
    rest, state = part(3, state, 99)
    assert {**some, **rest} == whole and not set(some) & set(rest)
    assert (state["epoch"], state["position"]) == (1, 0)


def test_states_name_the_mixture_and_those_of_another_are_refused_by_name(stores):
    own = shardd.DataLoader(proportions(stores), batch_size=16)
    next(iter(own))
    state = own.state_dict()
    assert state["plan"] == f"mixture-{own.dataset.plan}" and len(json.dumps(state)) < 300
    others = (
        mixed(stores, {"books": {"proportion": 0.5}, "code": {"proportion": 0.4}, "maths": {"proportion": 0.1}}, epoch_size=200),
        proportions(stores, shuffle_seed=1),
        shardd.StreamingDataset(stores["maths"], dataset="maths"),
    )
    for other in others:
        loader = shardd.DataLoader(other, batch_size=16)
        with pytest.raises(shardd.StateMismatch, match=f"of mixture {own.dataset.plan[:12]}, and .* follows (mixture|plan) {other.plan[:12]}"):
            loader.load_state_dict(state)
        with pytest.raises(shardd.StateMismatch, match="streams"):
            own.load_state_dict(loader.state_dict())
    loader.load_state_dict({**state, "position": 8}, force=True)
    assert loader.state_dict()["position"] == 8


def test_set_epoch_reads_that_epoch_of_a_mixture(stores):
    first = shardd.DataLoader(proportions(stores), batch_size=16)
    epochs = [read(first) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    again = shardd.DataLoader(proportions(stores), batch_size=16)
    again.set_epoch(2)
    assert read(again) == epochs[2] and again.state_dict()["epoch"] == 3


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_of_a_torch_loader_share_the_batches_of_a_mixture(stores, workers):
    from torch.utils.data import DataLoader

    expected = shardd.DataLoader(proportions(stores), batch_size=16)
    epochs = [[batch["id"].tolist() for batch in expected] for _ in range(2)]
    dataset = proportions(stores, batch_size=16)
    assert len(dataset) == 13
    for context in ("fork", "spawn"):
        loader = DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=context)
        dataset.set_epoch(0)
        for epoch in epochs:
            assert [batch["id"].tolist() for batch in loader] == epoch, context


def test_a_dataset_of_streams_can_be_pickled_and_iterated_by_itself(stores):
    dataset = proportions(stores, batch_size=16)
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy.plan == dataset.plan and repr(copy) == repr(dataset)
    assert read(copy) == read(dataset)
    assert sorted(sample["id"].item() for sample in mixed(stores, {"maths": {}, "code": {}})) == numbers(CODE) + numbers(MATHS)


def test_stored_order_is_that_of_each_stream(stores):
    dataset = mixed(stores, {"code": {}, "maths": {}}, shuffle=False)
    epoch = read(shardd.DataLoader(dataset, batch_size=16))
    for name, first, samples in (CODE, MATHS):
        stored = shardd.StreamingDataset(stores[name], dataset=name)[:]["id"].tolist()
        assert [number for number in epoch if first <= number < first + samples] == stored


def test_who_evaluates_reads_the_same_of_every_stream_in_every_epoch(stores):
    dataset = mixed(stores, {"code": {"choose": 40}, "books": {"choose": 7}}, shuffle=False)
    loader = shardd.DataLoader(dataset, batch_size=16)
    first = read(loader)
    assert len(first) == 47 and read(loader) == read(loader) == first


def test_samples_by_number_count_through_the_streams(stores):
    dataset = mixed(stores, {"maths": {"choose": 7}, "code": {"choose": 7}})
    single = {name: shardd.StreamingDataset(stores[name], dataset=name)[:]["id"].tolist() for name in ("maths", "code")}
    assert dataset[:]["id"].tolist() == single["maths"] + single["code"]
    assert dataset[30]["id"] == single["code"][0] and dataset[-1]["id"] == single["code"][-1]
    assert dataset[[31, 0]]["id"].tolist() == [single["code"][1], single["maths"][0]]
    with pytest.raises(IndexError, match="there is no sample 130; the streams together have 130"):
        dataset[130]


def test_classes_are_told_if_all_streams_have_the_same(stores):
    assert proportions(stores).class_to_idx == {"a": 0, "b": 1, "c": 2}
    with pytest.raises(AttributeError, match=r"different classes: maths has \['a', 'b', 'c'\], games has \['x', 'y'\]"):
        mixed(stores, {"maths": {}, "games": {}}).classes


@pytest.mark.parametrize(
    "shares, how, message",
    [
        ({"books": {"proportion": 1}, "code": {"repeat": 2}}, {}, "has repeat 2, but source 0 has proportion 1: give all of them a proportion"),
        ({"books": {"proportion": 1}, "code": {}}, {}, "has repeat 1, but source 0 has proportion 1"),
        ({"books": {"repeat": 1}, "code": {}}, {"epoch_size": 9}, "so leave epoch_size 9 out"),
        ({"books": {"proportion": 1}}, {"epoch_size": 0}, "an epoch of 0 samples reads nothing"),
        ({"maths": {"repeat": 0.01}}, {}, "repeat 0.01 of 30 samples is none: take more, or leave it out"),
        ({"books": {"proportion": -1}}, {}, "\"-1\" is not a decimal from 0"),
        ({"books": {"choose": 1.5}}, {}, "choose=1.5 is not a number of samples"),
        ({"books": {"proportion": "much"}}, {}, "proportion='much' is not a number: write 0.7"),
        ({"books": {"repeat": 1, "choose": 3}}, {}, "has repeat=1 and choose=3: give one of proportion, repeat and choose"),
        ({}, {}, "a mixture needs at least one source"),
        ({"books": {}, "pictures": {}}, {}, r"stream 1 \(pictures\) has no column \"label\", which is in stream 0 \(books\): .* ingest"),
        ({"books": {}}, {"remote": "somewhere"}, "remote and streams are both given: pass remote to each Stream, or leave streams out"),
        ({"books": {}}, {"servers": ["http://n"]}, "nodes work on one plan a run, so streams are read from their stores"),
        ({"books": {}}, {"columns": ["nothing"]}, "no column 'nothing'; there are id, label"),
    ],
)
def test_what_makes_no_mixture_is_refused_with_the_way_out(stores, shares, how, message):
    with pytest.raises(ValueError, match=message):
        mixed(stores, shares, **how)


def test_a_stream_needs_a_place_and_an_epoch_size_needs_streams(stores):
    with pytest.raises(ValueError, match="pass the directory or URL of the stream's store"):
        shardd.Stream(proportion=1)
    with pytest.raises(TypeError, match="streams are a list of shardd.Stream, and 'one' is a str"):
        shardd.StreamingDataset(streams=["one"])
    with pytest.raises(ValueError, match="epoch_size is for streams"):
        shardd.StreamingDataset(stores["maths"], dataset="maths", epoch_size=9)


def test_streams_of_buckets_and_directories_are_mixed(stores, bucket):
    pictures = {"id", "image", "label"}
    dataset = shardd.StreamingDataset(
        streams=[shardd.Stream(bucket.url, proportion=3), shardd.Stream(bucket.url, dataset="digits", proportion=1)],
        epoch_size=400,
    )
    assert set(dataset.columns) == pictures
    loader = shardd.DataLoader(dataset, batch_size=25)
    counts = Counter(number for _ in loader for number in loader.streams)
    assert counts == {0: 300, 1: 100}


def test_the_example_of_the_page_runs(stores, monkeypatch, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    example, *_ = [block for block in blocks if "shardd.Stream(" in block]
    for name in ("books", "code"):
        rows = ({"id": number, "label": 0} for number in range(60))
        shardd.from_iter(rows, str(tmp_path / f"{name}-store"), name=name)
    monkeypatch.chdir(tmp_path)

    def step(batch):
        return batch["id"].float()

    names = {"shardd": shardd, "step": step}
    exec(example, names)
    assert names["dataset"].num_samples == 10_000
    assert [samples for samples, _ in names["totals"].values()] == [7000, 3000]


def test_what_moved_is_told_of_each_stream_in_its_own_epochs(stores):
    loader = shardd.DataLoader(proportions(stores, q=0.5, partitions=5), batch_size=16)
    assert loader.exchange_stats() == {"nodes": 0, "streams": [{"stream": name, "epochs": []} for name, *_ in (BOOKS, CODE, MATHS)]}
    for _ in range(5):
        read(loader)
    told = loader.exchange_stats()["streams"]
    # 1000 samples are 600 of 400 books, 300 of 100 of code, and 100 of 30 of maths.
    assert [len(stream["epochs"]) for stream in told] == [1, 3, 3]
    assert all(0.2 < moved["share"] < 0.6 for stream in told for moved in stream["epochs"]), told


def test_epochs_of_a_mixture_can_be_limited(stores):
    whole, limited = (shardd.DataLoader(proportions(stores, **how), batch_size=16) for how in ({}, {"limit": 50}))
    assert read(limited) == read(whole)[:50]
    assert read(limited) == read(whole)[:50]
    assert limited.dataset.num_samples == 50 and len(limited) == 4
