"""Transforms of columns: the numbers of NumPy and PyTorch, and one batch for any number of threads and ranks."""

import json
import math
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
import xxhash

import shardd
from helpers import ingest, picture, shardctl
from shardd import column_transforms as C
from shardd import transforms as T

ROWS = 600
DRAW = np.random.default_rng(3)
EDGES = [0.0, -0.0, 1.5, -1.0, -2.0, 1e30, math.inf, -math.inf, math.nan]
WORDS = ["private", "state", "Zürich", "", "a longer word, of more than sixteen bytes"]


def table() -> pa.Table:
    """A table as people have them: with nulls, words, and lists of several lengths."""
    draw = np.random.default_rng(7)
    ages = [None if draw.random() < 0.1 else int(age) for age in draw.integers(17, 90, ROWS)]
    tags = [None if draw.random() < 0.1 else [WORDS[tag] for tag in draw.integers(0, 5, draw.integers(0, 4))] for _ in range(ROWS)]
    clicks = [draw.integers(0, 6, draw.integers(0, 5)).tolist() for _ in range(ROWS)]
    columns = {
        "id": pa.array(range(ROWS)),
        "age": pa.array(ages),
        "hours": pa.array(draw.integers(0, 100, ROWS)),
        "work": pa.array([None if draw.random() < 0.1 else WORDS[word] for word in draw.integers(0, 5, ROWS)]),
        "income": pa.array(np.where(draw.random(ROWS) < 0.1, np.nan, draw.normal(3e4, 2e4, ROWS))),
        "tags": pa.array(tags),
        "clicks": pa.array(clicks),
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(draw.normal(size=3 * ROWS).astype(np.float32)), 3),
    }
    return pa.table(columns)


CHAIN = C.Compose({
    "age": [C.FillNull(40), C.Normalize(mean=38.6, std=13.6)],
    "hours": [C.Bucketize([20, 40, 60]), C.OneHot(4)],
    "work": C.Vocabulary(["private", "state"], unknown=0),
    "income": [C.FillNull(0, nan=True), C.Clip(0, 60_000), C.Log1p()],
    "tags": [C.FillNull(""), C.Hash(bins=1000, seed=5)],
    "clicks": C.MultiHot(6, dtype="uint8"),
    "vector": C.MinMaxScale(min=[-1, -2, -3], max=3),
})


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("columns")
    pyarrow.parquet.write_table(table(), folder / "rows.parquet", row_group_size=100)
    ingest(folder / "store", "rows", folder / "rows.parquet", "--shard-size", "8KiB")
    return str(folder / "store")


def reading(store, transform=CHAIN, rank=0, world=1, **how) -> shardd.DataLoader:
    dataset = shardd.StreamingDataset(store, rank=rank, world_size=world, q=0.5, partitions=12)
    return shardd.DataLoader(dataset, global_batch_size=48, virtual_ranks=6, transform=transform, **how)


def read(store, world=1, **how) -> dict[int, dict]:
    """Each sample of an epoch, by its number."""
    found = {}
    for rank in range(world):
        loader = reading(store, rank=rank, world=world, **how)
        for batch in loader:
            for at, number in enumerate(batch["id"].tolist()):
                found[number] = {name: np.asarray(values[at]).tobytes() for name, values in batch.items()}
        loader.close()
    assert len(found) == ROWS
    return found


def one(values, *ops, kind=None) -> np.ndarray:
    """The results of operations on a column."""
    array = values if isinstance(values, pa.Array) else pa.array(values, type=kind)
    return np.asarray(C.Compose({"a": list(ops)})(pa.RecordBatch.from_pydict({"a": array}))["a"])


def equal(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
    assert np.array_equal(ours, theirs, equal_nan=theirs.dtype.kind == "f")


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "float32", "float64"])
def test_arithmetic_is_that_of_numpy(dtype):
    floats = np.concatenate([DRAW.normal(0, 30, 500), EDGES])
    values = floats.astype(dtype) if dtype.startswith("float") else DRAW.integers(0, 120, 500).astype(dtype)
    wide = values.astype(np.float64)
    with np.errstate(all="ignore"):
        for result in ("float32", "float64"):
            equal(one(values, C.Normalize(3.5, 1.7, dtype=result)), ((wide - 3.5) / 1.7).astype(result))
            equal(one(values, C.MinMaxScale(-5, 120, dtype=result)), ((wide + 5) / 125).astype(result))
        # The last bit of a logarithm of 64 bits is the library's own.
        np.testing.assert_allclose(one(values, C.Log1p("float64")), np.log1p(wide), rtol=1e-15)
        np.testing.assert_allclose(one(values, C.Log1p()), np.log1p(wide).astype(np.float32), rtol=1.2e-7)
    equal(one(values, C.Clip(-3, 50)), np.clip(values, np.array(-3).astype(dtype) if dtype[0] != "u" else 0, np.array(50).astype(dtype)))
    equal(one(values, C.Clip(max=7)), np.minimum(values, np.array(7).astype(dtype)))


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.float64])
@pytest.mark.parametrize("right", [False, True])
def test_buckets_are_those_of_torch(dtype, right):
    values = torch.tensor([*DRAW.integers(-30, 30, 300).tolist(), *(EDGES if dtype.is_floating_point else [])]).to(dtype)
    for boundaries in ([0], [-20, -3, 0, 7, 20], [-0.1, 0.1, 0.3] if dtype.is_floating_point else [2]):
        theirs = torch.bucketize(values, torch.tensor(boundaries).to(dtype), right=right)
        equal(one(values.numpy(), C.Bucketize(boundaries, right=right)), theirs.numpy())


def test_a_stranger_computes_the_hash_of_words_and_integers():
    words = [*WORDS, *(str(number) * (number % 40) for number in range(300))]
    expected = np.array([xxhash.xxh3_64_intdigest(word.encode(), 9) % 1000 for word in words])
    for kind in (pa.string(), pa.large_string()):
        equal(one(words, C.Hash(1000, seed=9), kind=kind), expected)
    equal(one([word.encode() for word in words], C.Hash(1000, seed=9), kind=pa.binary()), expected)
    equal(one(pa.array(words).dictionary_encode(), C.Hash(1000, seed=9)), expected)
    numbers = [0, -1, 2**62, *range(100)]
    expected = np.array([xxhash.xxh3_64_intdigest(number.to_bytes(8, "little", signed=True)) % 7 for number in numbers])
    equal(one(numbers, C.Hash(7)), expected)


def test_vectors_of_classes_are_those_of_torch():
    classes = DRAW.integers(0, 9, 200)
    for dtype in ("float32", "float16", "float64", "uint8", "int64", "bool"):
        equal(one(classes, C.OneHot(9, dtype=dtype)), torch.nn.functional.one_hot(torch.tensor(classes), 9).numpy().astype(dtype))
    lists = [DRAW.integers(0, 9, DRAW.integers(0, 6)).tolist() for _ in range(200)]
    expected = np.zeros((200, 9), np.float32)
    for row, members in enumerate(lists):
        expected[row, members] = 1
    equal(one(lists, C.MultiHot(9), kind=pa.list_(pa.int64())), expected)


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64, np.float16, np.float32, np.float64, np.bool_])
def test_a_cast_is_that_of_numpy(dtype):
    values = np.array([0, 1, 2.5, 99.9, 3])
    equal(one(values, C.Cast(dtype)), values.astype(dtype))
    equal(one(np.array([True, False]), C.Cast(dtype)), np.array([True, False]).astype(dtype))


def test_nulls_are_filled_in_values_lists_and_vectors():
    equal(one([1, None, 3], C.FillNull(7)), np.array([1, 7, 3]))
    equal(one([True, None], C.FillNull(False), C.Cast("uint8")), np.array([1, 0], np.uint8))
    equal(one([1.0, None, math.nan], C.FillNull(0.5)), np.array([1, 0.5, math.nan]))
    equal(one([1.0, None, math.nan], C.FillNull(0.5, nan=True)), np.array([1, 0.5, 0.5]))
    equal(one([[1, None], None], C.FillNull(4), kind=pa.list_(pa.int64(), 2)), np.array([[1, 4], [4, 4]]))
    lists = C.Compose({"a": [C.FillNull(4)]})(pa.RecordBatch.from_pydict({"a": pa.array([[1, None], None, [3]])}))["a"]
    assert isinstance(lists, shardd.Ragged) and [row.tolist() for row in lists] == [[1, 4], [], [3]]
    words = [["b", None], None, ["x", "a"]]
    numbers = C.Compose({"a": C.Vocabulary(["a", "b"], unknown=0)})(pa.RecordBatch.from_pydict({"a": pa.array(words)}))["a"]
    assert [row.tolist() for row in numbers] == [[2, 0], [], [0, 1]]


def test_batches_have_the_numbers_of_the_table(store):
    rows, found = table().to_pandas(), {}
    for batch in reading(store):
        assert batch["hours"].shape == (len(batch["id"]), 4) and batch["hours"].dtype == torch.float32
        for at, number in enumerate(batch["id"].tolist()):
            found[number] = {name: values[at] for name, values in batch.items()}
    assert sorted(found) == list(range(ROWS))
    for number, row in rows.iterrows():
        ours = found[number]
        age = 40 if np.isnan(row.age) else row.age
        assert ours["age"] == torch.tensor((age - 38.6) / 13.6, dtype=torch.float64).float()
        assert ours["hours"].argmax() == np.searchsorted([20, 40, 60], row.hours)
        assert ours["work"] == {"private": 1, "state": 2}.get(row.work, 0)
        assert ours["income"] == pytest.approx(np.log1p(min(max(np.nan_to_num(row.income), 0), 60_000)), rel=1e-6)
        tags = [] if row.tags is None else row.tags
        assert ours["tags"].tolist() == [xxhash.xxh3_64_intdigest(tag.encode(), 5) % 1000 for tag in tags]
        assert ours["clicks"].nonzero().flatten().tolist() == sorted(set(row.clicks))
        expected = (row.vector.astype(float) - [-1, -2, -3]) / (3 - np.array([-1, -2, -3]))
        assert np.array_equal(ours["vector"].numpy(), expected.astype(np.float32))


def test_an_epoch_has_the_same_values_for_any_threads_and_ranks(store):
    once = read(store, num_workers=1)
    assert read(store, num_workers=8) == once
    assert read(store, world=2, num_workers=3) == once
    assert read(store, world=6) == once


def test_a_stand_in_of_a_short_step_has_the_same_types(store):
    def types(batch):
        return {name: (str(values.dtype), tuple(values.shape[1:])) for name, values in batch.items() if isinstance(values, torch.Tensor)}

    weights = []
    for rank in range(6):
        loader = reading(store, rank=rank, world=6)
        # Of the last step, which is begun here, only half of the ranks have samples.
        loader.load_state_dict({**loader.state_dict(), "position": ROWS - 3})
        for batch in loader:
            weights.append(loader.weight)
            assert types(batch) == types(next(iter(reading(store)))) and len(batch["id"]) == 1
    assert sorted(weights) == [0, 0, 0, 2, 2, 2]


@pytest.mark.parametrize("order", [lambda *both: list(both), lambda *both: list(reversed(both))])
def test_pictures_and_columns_change_together(tmp_path, order):
    rows = ({"id": number, "image": picture(number), "label": number % 10} for number in range(96))
    shardd.from_iter(rows, str(tmp_path / "store"), name="digits")
    dataset = shardd.StreamingDataset(str(tmp_path / "store"), q=0.5, partitions=12)
    pictures = T.Compose([T.RandomCrop(6), T.ToDtype("float32", scale=True)])
    columns = C.Compose({"label": C.OneHot(10)})
    both, alone = (shardd.DataLoader(dataset, 16, transform=how) for how in (order(pictures, columns), pictures))
    for batch, expected in zip(both, alone, strict=True):
        assert torch.equal(batch["image"], expected["image"])
        assert torch.equal(batch["label"], torch.nn.functional.one_hot(expected["label"], 10).float())
    joined = both._chain
    assert T.from_json(joined.to_json()) == joined == pickle.loads(pickle.dumps(joined)) != columns
    twice = shardd.DataLoader(dataset, 16, transform=[pictures, C.Compose({"image": C.Cast("float32")})])
    with pytest.raises(ValueError, match='two transforms change column "image"'):
        next(iter(twice))


def test_functions_get_samples_with_changed_columns(store):
    def older(sample):
        return {"age": sample["age"] + 1}

    plain = torch.cat([batch["age"] for batch in reading(store)])
    assert torch.equal(torch.cat([batch["age"] for batch in reading(store, [CHAIN, older])]), plain + 1)
    with pytest.raises(ValueError, match="put the Compose of columns before functions"):
        reading(store, [older, CHAIN])


def test_a_state_names_the_transforms_and_a_loader_with_others_warns(store):
    loader = reading(store)
    batches = iter(loader)
    for _ in range(6):
        next(batches)
    state = loader.state_dict()
    assert state["transforms"] == CHAIN.digest[:16]
    rest = [batch["age"] for batch in batches]
    resumed = reading(store)
    resumed.load_state_dict(state)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip([batch["age"] for batch in resumed], rest, strict=True))
    with pytest.warns(UserWarning, match="samples differ"):
        reading(store, C.Compose({"age": C.FillNull(41)})).load_state_dict(state)


def test_a_chain_is_a_document():
    again = C.from_json(CHAIN.to_json())
    assert again == CHAIN and again.digest == CHAIN.digest and again.columns.keys() == CHAIN.columns.keys()
    assert json.loads(CHAIN.to_json())["columns"]["hours"][1] == {"type": "OneHot", "classes": 4, "dtype": "float32"}
    assert C.Compose({"age": C.Normalize(np.float32(0.5), torch.tensor(2.0))}) == C.Compose({"age": C.Normalize(0.5, 2.0)})


def test_a_sample_is_changed_as_a_batch_is():
    chain = C.Compose({"age": C.Normalize(40, 10), "city": C.Hash(9), "tags": C.MultiHot(4)})
    sample = chain({"age": 30, "city": "Bern", "tags": [0, 3], "other": "stays"})
    assert sample["age"] == -1.0 and sample["city"] == xxhash.xxh3_64_intdigest(b"Bern") % 9
    assert sample["tags"].tolist() == [1, 0, 0, 1] and sample["other"] == "stays"
    vector = C.Compose({"x": C.Normalize([1, 2], 1)})({"x": np.array([1, 2], np.float32)})
    assert vector["x"].tolist() == [0, 0]


@pytest.mark.parametrize(
    "columns, message",
    [
        ({"agee": C.Log1p()}, 'the transforms are of column "agee", and there are id, age'),
        ({"work": C.Normalize(0, 1)}, 'operation 0 of the transforms of column "work", Normalize, takes numbers, and gets text: put Vocabulary or Hash'),
        ({"hours": [C.Log1p(), C.OneHot(4)]}, 'operation 1 of the transforms of column "hours", OneHot, takes integers, and gets float32'),
        ({"hours": C.OneHot(4)}, 'OneHot, takes 0 to 3, and gets [0-9]+: raise classes, or put Clip or Vocabulary before it'),
        ({"age": C.Log1p()}, 'column "age" of the sample at position [0-9]+ of epoch 0 cannot be transformed: operation 0, Log1p, gets a null: put FillNull'),
        ({"work": [C.FillNull(""), C.Vocabulary(["private"])]}, "is none of its words: add it, or pass unknown"),
    ],
)
def test_what_cannot_be_changed_is_named_with_the_way_out(store, columns, message):
    with pytest.raises((ValueError, RuntimeError), match=message):
        list(reading(store, C.Compose(columns)))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: C.OneHotEncoder, "the nearest is OneHot"),
        (lambda: C.Compose([C.Log1p()]), "a mapping of columns to operations"),
        (lambda: C.Compose({"a": T.Normalize([0.5], [0.5])}), "an operation on pictures"),
        (lambda: C.Compose({"a": C.Clip(min=math.inf)}), "not finite"),
        (lambda: C.Compose({"a": C.Normalize("mean", 1)}), "Normalize: data did not match"),
        (lambda: C.Compose({"a": C.Cast("int7")}), "unknown variant `int7`"),
        (lambda: C.from_json('{"columns": {}, "seed": 3}'), "unknown field `seed`"),
        (lambda: C.Compose({"a": C.Log1p()})([1, 2]), "give a record batch of Arrow"),
    ],
)
def test_a_mistaken_chain_is_refused(make, message):
    with pytest.raises((ValueError, TypeError, AttributeError), match=message):
        make()


def test_columns_that_are_left_out_are_not_changed(store):
    dataset = shardd.StreamingDataset(store, columns=["id", "age"], partitions=12)
    with pytest.raises(ValueError, match="leaves hours, work.* out, which the transforms change"):
        shardd.DataLoader(dataset, 16, transform=CHAIN)


def test_replay_gives_the_values_that_a_rank_saw(store, tmp_path):
    loader = reading(store, rank=1, world=3)
    batches = [batch for _, batch in zip(range(4), loader)]
    (tmp_path / "chain.json").write_text(CHAIN.to_json())
    shardctl(
        "--store", store, "replay", "--plan", loader.dataset.plan, "--epoch", 0, "--position", 48, "--batch-size", 8, "--virtual-ranks", 6,
        "--rank", 1, "--world", 3, "--transforms", tmp_path / "chain.json", "--out", tmp_path / "step.arrow",
    )
    with pa.memory_map(str(tmp_path / "step.arrow")) as file:
        again = pa.ipc.open_file(file).read_all()
    assert again["id"].to_pylist() == [number for batch in batches[2:] for number in batch["id"].tolist()]
    assert again["age"].to_pylist() == [age for batch in batches[2:] for age in batch["age"].tolist()]


def test_a_notebook_shows_the_operations_of_columns(store):
    shown = CHAIN._repr_html_()
    assert "Bucketize" in shown and "boundaries" in shown and "income" in shown
    assert "column_transforms" in shown and CHAIN.digest[:12] in reading(store)._repr_html_()
