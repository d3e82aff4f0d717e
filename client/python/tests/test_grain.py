"""Grain: random access, the plan's order in its loaders, and shards whose number changes."""

import pickle

import numpy as np
import pytest

import shardd
from helpers import EVERY, PLAN, SAMPLES, ids, picture

grain = pytest.importorskip("grain", reason="skipped: Grain is not installed")
import cloudpickle
from absl import flags

from shardd.grain import DataSource, PlanSampler, in_order

EPOCH = {"q": 0.5, "partitions": 48}

# Processes of Grain read flags, which programs outside of absl.app have to parse or do without.
flags.FLAGS.mark_as_parsed()


@pytest.fixture
def source(dataset):
    return DataSource(dataset)


def shards(index, count):
    return grain.sharding.ShardOptions(shard_index=index, shard_count=count, drop_remainder=False)


# --- random access --------------------------------------------------------------------------------------------------------


def test_a_source_has_the_samples_of_the_dataset_by_their_numbers(dataset, source):
    assert isinstance(source, grain.sources.RandomAccessDataSource) and len(source) == SAMPLES
    for number in (0, 7, SAMPLES - 1):
        sample, other = source[number], dataset[number]
        assert sample.keys() == other.keys() and isinstance(sample["image"], np.ndarray)
        assert all(np.array_equal(sample[name], other[name]) for name in other)
        assert np.array_equal(sample["image"], picture(int(sample["id"])))
    with pytest.raises(IndexError, match=f"there is no sample {SAMPLES}"):
        source[SAMPLES]


def test_a_map_dataset_of_grain_has_every_sample_once(source):
    batches = list(grain.MapDataset.source(source).shuffle(seed=3).batch(64))
    assert batches[0]["image"].shape == (64, 8, 8, 3) and batches[0]["image"].dtype == np.uint8
    assert sorted(ids(batches)) == EVERY


def test_values_that_are_no_arrays_are_bytes_text_and_lists(tmp_path):
    rows = [{"text": f"row {number}", "data": bytes([number] * number), "number": number} for number in range(20)]
    shardd.from_iter(rows, str(tmp_path), name="rows")
    source = DataSource(shardd.StreamingDataset(str(tmp_path), format="numpy"))
    assert sorted((row["text"], row["data"]) for row in source._getitems(range(20))) == sorted((row["text"], row["data"]) for row in rows)
    assert isinstance(source[0]["data"], bytes) and isinstance(source[0]["text"], str)


def test_a_source_is_known_by_its_version_and_columns_and_not_by_its_place(store, dataset, source, tmp_path):
    moved = tmp_path / "moved"
    moved.symlink_to(store)
    assert repr(DataSource(shardd.StreamingDataset(str(moved)))) == repr(source)
    assert dataset.version in repr(source) and "id+image+label" in repr(source)
    others = {"columns": ["id"]}, {"image_layout": "chw"}
    assert repr(source) not in [repr(DataSource(shardd.StreamingDataset(store, **how))) for how in others]


def test_streams_are_one_source(store):
    both = DataSource(shardd.StreamingDataset(streams=[shardd.Stream(store), shardd.Stream(store)]))
    assert len(both) == 2 * SAMPLES and both[3]["id"] == both[SAMPLES + 3]["id"]
    assert repr(both).count("digits") == 2


def test_sources_and_samplers_can_be_pickled(source):
    sampler = PlanSampler(source, **EPOCH)
    for library in (pickle, cloudpickle):
        for thing in (source, sampler):
            copy = library.loads(library.dumps(thing))
            assert repr(copy) == repr(thing) and len(copy) == len(thing)
    assert copy.sample_at(1234) == sampler.sample_at(1234)


# --- the order ------------------------------------------------------------------------------------------------------------


def test_the_order_is_that_of_a_sampler_of_shardd(source):
    ours, sampler = PlanSampler(source, **EPOCH), shardd.Sampler(SAMPLES, 1, 0, **EPOCH)
    assert ours.plan == sampler.plan
    for epoch in range(3):
        assert [ours.sample_at(epoch * SAMPLES + at) for at in range(SAMPLES)] == list(sampler)


def test_an_order_of_many_blocks_is_whole(monkeypatch):
    from shardd import grain as module

    order = PlanSampler(10_000)
    whole = [order.sample_at(at) for at in range(10_000)]
    assert sorted(whole) == list(range(10_000))
    monkeypatch.setattr(module, "_BLOCK", 7)
    small = PlanSampler(10_000)
    assert [small.sample_at(at) for at in range(10_000)] == whole
    assert [small.sample_at(at) for at in (9_999, 0, 5_000)] == [whole[at] for at in (9_999, 0, 5_000)]


def load(source, index=0, count=1, **how):
    sampler = PlanSampler(source, epochs=2, **EPOCH)
    operations = [grain.transforms.Batch(10, drop_remainder=False)]
    return grain.DataLoader(data_source=source, sampler=sampler, shard_options=shards(index, count), operations=operations, **how)


def test_grains_loader_reads_epoch_after_epoch(source):
    read = ids(load(source))
    assert sorted(read[:SAMPLES]) == sorted(read[SAMPLES:]) == EVERY and read[:SAMPLES] != read[SAMPLES:]


@pytest.mark.parametrize("count", [2, 3])
def test_shards_of_grains_loader_share_each_step_of_the_order(source, count):
    # Grain leaves out positions that not every shard has.
    alone = ids(load(source))[: 2 * SAMPLES // count * count]
    each = [list(load(source, index, count)) for index in range(count)]
    for step, batches in enumerate(zip(*each, strict=True)):
        begin = step * 10 * count
        assert sorted(ids(batches)) == sorted(alone[begin : begin + 10 * count])


@pytest.mark.parametrize("workers", [0, 2])
def test_grains_loader_resumes_where_it_was_and_not_with_other_data_or_another_order(store, source, workers):
    whole = [ids([batch]) for batch in load(source, worker_count=workers)]
    assert sorted(sum(whole, [])) == sorted(EVERY + EVERY)
    iterator = iter(load(source, worker_count=workers))
    for _ in range(23):
        next(iterator)
    state = iterator.get_state()
    resumed = iter(load(DataSource(shardd.StreamingDataset(store)), worker_count=workers))
    resumed.set_state(state)
    assert [ids([batch]) for batch in resumed] == whole[23:]
    if workers == 0:
        other = iter(load(DataSource(shardd.StreamingDataset(store, columns=["id"]))))
        with pytest.raises(ValueError, match="DataSource in checkpoint does not match"):
            other.set_state(state)
        order = PlanSampler(source, seed=1, **EPOCH)
        other = iter(grain.DataLoader(data_source=source, sampler=order, shard_options=shards(0, 1)))
        with pytest.raises(ValueError, match="Sampler in checkpoint does not match"):
            other.set_state(state)


def test_random_numbers_depend_on_the_seed_and_the_position(source):
    first, second = PlanSampler(source, seed=1), PlanSampler(source, seed=2)
    draws = {(sampler.seed, at): sampler[at].rng.random(8).tolist() for sampler in (first, second) for at in (0, 1, SAMPLES)}
    values = [value for draw in draws.values() for value in draw]
    assert len(set(values)) == len(values)
    assert pickle.loads(pickle.dumps(first))[1].rng.random(8).tolist() == draws[1, 1]


# --- another number of shards ---------------------------------------------------------------------------------------------

GLOBAL = 24


class Training:
    """A linear classifier over the shards of a world, whose gradients are averaged."""

    def __init__(self, source, world, state=None, weights=None):
        ordered = in_order(source, PlanSampler(source, **EPOCH)).repeat()
        ordered = ordered.map(lambda row: {**row, "image": row["image"].ravel() / np.float32(255)})
        self.shards = [iter(grain.experimental.ElasticIterator(ordered, GLOBAL, shards(rank, world))) for rank in range(world)]
        if state is not None:
            for shard in self.shards:
                shard.set_state(state)
        self.weights = np.zeros((192, 10), np.float32) if weights is None else weights.copy()
        self.curve, self.read = [], []

    def steps(self, count):
        for _ in range(count):
            batches = [next(shard) for shard in self.shards]
            losses, gradients = zip(*(self.backward(batch) for batch in batches))
            self.weights -= 0.1 * np.mean(gradients, axis=0)
            self.curve.append(float(np.mean(losses)))
            self.read.append(sorted(ids(batches)))
        return self

    def backward(self, batch):
        scores = batch["image"] @ self.weights
        chances = np.exp(scores - scores.max(1, keepdims=True))
        chances /= chances.sum(1, keepdims=True)
        rows = np.arange(len(scores))
        loss = -np.log(chances[rows, batch["label"]]).mean()
        chances[rows, batch["label"]] -= 1
        return loss, batch["image"].T @ chances / len(rows)


def test_a_training_stopped_on_four_shards_goes_on_with_three_on_one_loss_curve(source):
    steps = 2 * SAMPLES // GLOBAL
    whole = Training(source, 4).steps(steps)
    before = Training(source, 4).steps(17)
    states = [shard.get_state() for shard in before.shards]
    assert all(state == states[0] for state in states)
    after = Training(source, 3, states[0], before.weights).steps(steps - 17)
    assert before.read + after.read == whole.read
    # Two epochs: all samples twice, but for those of the step that is not full.
    counts = np.bincount(sum(whole.read, []), minlength=SAMPLES)
    assert counts.max() == 2 and counts.sum() == steps * GLOBAL
    # The sums of a step have another order.
    np.testing.assert_allclose(before.curve + after.curve, whole.curve, rtol=1e-5)


# --- Keras ----------------------------------------------------------------------------------------------------------------


def test_keras_trains_on_the_order_of_a_plan(source, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras", reason="skipped: Keras is not installed")
    read = []

    def pair(row):
        read.append(int(row["id"]))
        return row["image"].ravel() / np.float32(255), row["label"]

    sampler = PlanSampler(source, **EPOCH)
    batches = in_order(source, sampler).repeat().map(pair).batch(59)
    model = keras.Sequential([keras.layers.Dense(10)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses = model.fit(batches, epochs=2, steps_per_epoch=17, shuffle=False, verbose=0).history["loss"]
    assert len(losses) == 2 and losses[1] < losses[0]
    # 17 batches of 59 are an epoch. Keras has looked at the first two.
    assert {*EVERY} <= {*read}


# --- mistakes -------------------------------------------------------------------------------------------------------------


def test_mistakes_name_the_way_out(store, dataset, source, script):
    with pytest.raises(TypeError, match="takes a shardd.StreamingDataset, and this is a list"):
        DataSource([1, 2])
    with pytest.raises(ValueError, match='pass format="numpy"'):
        DataSource(shardd.StreamingDataset(store, format="torch"))
    with pytest.raises(ValueError, match="take a slice of the MapDataset"):
        DataSource(shardd.StreamingDataset(store, limit=10))
    with pytest.raises(ValueError, match="epochs=0 reads nothing"):
        PlanSampler(source, epochs=0)
    with pytest.raises(ValueError, match="no order of 0 samples"):
        PlanSampler([])
    with pytest.raises(ValueError, match=f"for 5 samples, and the source has {SAMPLES}"):
        in_order(source, PlanSampler(5))
    with pytest.raises(IndexError, match="there is no position 10; 2 epochs have 10"):
        PlanSampler(5, epochs=2)[10]
    missing = script("import sys; sys.modules['grain'] = None; import shardd.grain", check=False)
    assert "shardd.grain needs Grain: pip install grain" in missing.stderr


def test_the_dataset_of_a_source_is_left_as_it_was(store):
    dataset = shardd.StreamingDataset(store, **PLAN)
    DataSource(dataset)[0]
    assert type(dataset[0]["image"]).__module__ == "torch"
