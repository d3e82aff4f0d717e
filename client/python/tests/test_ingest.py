"""Datasets made from Python: what goes in comes out, and what cannot is named."""

import io
import warnings
from typing import NamedTuple

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

import shardd


def back(directory, **how):
    """Every sample, by its number."""
    dataset = shardd.StreamingDataset(str(directory), q=0, **how)
    return dataset, {int(sample["id"]): sample for sample in dataset}


def test_a_store_may_be_a_path(tmp_path):
    shardd.from_iter(({"id": n} for n in range(10)), tmp_path, name="rows")
    dataset = shardd.StreamingDataset(tmp_path, q=0)
    assert sorted(int(sample["id"]) for sample in dataset) == list(range(10))
    streams = shardd.StreamingDataset(streams=[shardd.Stream(tmp_path, proportion=1)], epoch_size=10)
    assert len(list(streams)) == 10


def test_values_of_every_kind_come_back_as_they_were(tmp_path):
    kinds = ["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]

    def row(n: int) -> dict:
        scalars = {kind: np.dtype(kind).type(n % 2 if kind == "b1" else n % 100) for kind in kinds}
        arrays = {f"{kind}s": np.full((2, 3), n % 100, kind) for kind in kinds if kind != "b1"}
        return {"id": n, **scalars, **arrays, "raw": bytes([n % 256]) * (n % 5), "text": "ä" * (n % 4), "float": n / 3}

    shardd.from_iter((row(n) for n in range(300)), str(tmp_path), name="all")
    dataset, samples = back(tmp_path, format="numpy")
    assert sorted(samples) == list(range(300)) and dataset.columns == list(row(0))
    for n, sample in samples.items():
        for name, value in row(n).items():
            got = sample[name]
            if isinstance(value, (bytes, str)):
                assert got == value
            else:
                assert np.asarray(got).dtype == np.asarray(value).dtype and np.shape(got) == np.shape(value)
                assert np.array_equal(got, value), name


def test_tensors_and_pictures_come_back(tmp_path):
    pictures = [np.random.default_rng(n).integers(0, 256, (5, 7, 3), np.uint8) for n in range(20)]
    rows = ({"id": n, "tensor": torch.full((4,), n, dtype=torch.float16), "picture": Image.fromarray(p)} for n, p in enumerate(pictures))
    shardd.from_iter(rows, str(tmp_path), name="pictures")
    for n, sample in back(tmp_path)[1].items():
        assert torch.equal(sample["tensor"], torch.full((4,), n, dtype=torch.float16))
        assert (sample["picture"].numpy() == pictures[n]).all()


class Folder(torch.utils.data.Dataset):
    classes = ["cat", "dog"]

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int):
        if index >= 50:
            raise IndexError(index)
        return torch.full((3, 4, 4), index, dtype=torch.uint8), index % 2, index


def test_a_dataset_of_torch_keeps_its_classes(tmp_path):
    shardd.from_torch(Folder(), str(tmp_path), name="animals", columns=("image", "label", "id"))
    dataset, samples = back(tmp_path)
    assert dataset.class_to_idx == {"cat": 0, "dog": 1}
    assert all(sample["image"].unique().item() == n and sample["label"] == n % 2 for n, sample in samples.items())
    with pytest.raises(ValueError, match="a sample has 3 parts, and columns names 2: image, label"):
        shardd.from_torch(Folder(), str(tmp_path), name="again")


class Items(torch.utils.data.Dataset):
    """Of some items, whatever they are."""

    def __init__(self, items) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int):
        return self.items[index]


class Point(NamedTuple):
    x: int
    y: float


# Two rows, or two characters, are no two columns.
SINGLE = {
    "tensor": [torch.full((2, 3), n) for n in range(20)],
    "array": [np.full(2, n, np.float32) for n in range(20)],
    "number": list(range(20)),
    "bytes": [bytes([n, 1]) for n in range(20)],
    "text": [f"{n:02}" for n in range(20)],
    "tuple of one": [(torch.full((2,), n),) for n in range(20)],
}


@pytest.mark.parametrize("kind", SINGLE)
@pytest.mark.parametrize("columns", [None, ("x",)])
def test_a_sample_that_is_a_single_value_is_one_column(tmp_path, kind, columns):
    items = SINGLE[kind]
    shardd.from_torch(Items(items), str(tmp_path), name="single", columns=columns, mix="sequential")
    dataset = shardd.StreamingDataset(str(tmp_path), format="numpy")
    [name] = columns or ("data",)
    assert dataset.columns == [name]
    for number, item in enumerate(items):
        value = item[0] if isinstance(item, tuple) else item
        got = dataset[number][name]
        assert got == value if isinstance(value, (bytes, str)) else np.array_equal(got, value)


def test_a_tensor_dataset_and_named_tuples_are_taken_without_names_of_columns(tmp_path):
    shardd.from_torch(torch.utils.data.TensorDataset(torch.arange(20)), str(tmp_path / "one"), name="one")
    assert shardd.StreamingDataset(str(tmp_path / "one")).columns == ["data"]
    shardd.from_torch(Items([Point(n, n / 2) for n in range(20)]), str(tmp_path / "two"), name="two")
    assert shardd.StreamingDataset(str(tmp_path / "two")).columns == ["x", "y"]
    with pytest.raises(ValueError, match="a sample has one part, and columns names 2: a, b"):
        shardd.from_torch(Items(list(range(20))), str(tmp_path / "no"), name="no", columns=("a", "b"))


def test_classes_of_a_dataset_without_labels_are_left_out(tmp_path):
    items = Items(list(range(20)))
    items.classes = ["cat", "dog"]
    shardd.from_torch(items, str(tmp_path), name="single")
    assert shardd.StreamingDataset(str(tmp_path)).columns == ["data"]


def test_an_iterable_dataset_of_torch_of_dicts_is_taken(tmp_path):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return ({"id": n, "x": n * 0.5} for n in range(40))

    shardd.from_torch(Stream(), str(tmp_path), name="stream")
    assert {n: sample["x"].item() for n, sample in back(tmp_path)[1].items()} == {n: n * 0.5 for n in range(40)}


def test_a_dataset_of_hugging_face_keeps_pictures_encoded_and_its_classes(tmp_path):

    def png(n: int) -> bytes:
        out = io.BytesIO()
        Image.new("RGB", (4, 4), (n, 0, 0)).save(out, "PNG")
        return out.getvalue()

    features = datasets.Features(
        {"id": datasets.Value("int64"), "image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"]), "text": datasets.Value("string")}
    )
    columns = {"id": list(range(30)), "image": [{"bytes": png(n), "path": None} for n in range(30)], "label": [n % 2 for n in range(30)], "text": [str(n) for n in range(30)]}
    shardd.from_hf(datasets.Dataset.from_dict(columns, features=features), str(tmp_path), name="hf")
    dataset, samples = back(tmp_path)
    assert dataset.class_to_idx == {"cat": 0, "dog": 1}
    assert all(sample["image"] == png(n) and sample["label"] == n % 2 and sample["text"] == str(n) for n, sample in samples.items())


GOOD = {"id": 0, "x": np.zeros(3, "f4"), "t": "a"}


@pytest.mark.parametrize(
    "rows, message",
    [
        ([], "there are no rows"),
        ([GOOD, {"id": 1}], "row 1 has the columns id, and the rows before id, x, t"),
        ([GOOD, {**GOOD, "x": np.zeros(4, "f4")}], r"row 1, column 'x': float32 of shape \(4,\), and the rows before have float32 of shape \(3,\)"),
        ([GOOD, {**GOOD, "x": np.zeros(3, "f8")}], "row 1, column 'x': float64 of shape"),
        ([GOOD, {**GOOD, "t": b"a"}], "row 1, column 't': bytes, and the rows before have text"),
        ([{**GOOD, "x": object()}], "row 0, column 'x': object of object cannot be kept: give numbers, arrays, bytes or text"),
        ([{**GOOD, "x": None}], "row 0, column 'x': NoneType"),
        ([{**GOOD, "x": 1 + 2j}], "row 0, column 'x': complex"),
        ([{**GOOD, "x": [[1, 2], [3]]}], "row 0, column 'x': list"),
        ([{**GOOD, "x": np.zeros((3, 0))}], "column \"x\" has values of shape .*cannot be kept"),
        ([3], "row 0 is a int: give a dict"),
    ],
)
def test_a_row_that_cannot_be_kept_is_named_and_nothing_is_made(tmp_path, rows, message):
    with pytest.raises(ValueError, match=message):
        shardd.from_iter(rows, str(tmp_path / "store"), name="bad")
    assert not (tmp_path / "store").exists()


def test_numbers_of_python_are_what_numpy_makes_of_them_and_classes_need_a_column(tmp_path):
    with pytest.raises(ValueError, match="classes names column 'lable'; there are id, label"):
        shardd.from_iter([{"id": 0, "label": 1}], str(tmp_path / "a"), name="a", classes={"lable": ["x"]})
    shardd.from_iter(({"id": n, "flag": n % 2 == 0, "x": n / 2} for n in range(10)), str(tmp_path / "b"), name="b")
    sample = back(tmp_path / "b")[1][4]
    assert (sample["id"].dtype, sample["flag"].dtype, sample["x"].dtype) == (torch.int64, torch.bool, torch.float64)


def test_an_error_of_the_rows_themselves_is_passed_on(tmp_path):
    def rows():
        yield GOOD
        raise LookupError("of the user's")

    with pytest.raises(LookupError, match="of the user's"):
        shardd.from_iter(rows(), str(tmp_path / "store"), name="bad")


def of_order(directory, **how) -> str:
    shardd.from_iter(({"id": n, "label": n % 3} for n in range(300)), str(directory), name="digits", shard_size="1KiB", **how)
    return str(directory)


@pytest.mark.parametrize("mix", ["random", "label"])
def test_stored_order_is_mixed_unless_it_is_asked_for_and_this_is_said(tmp_path, mix):
    store = of_order(tmp_path, mix=mix)
    with pytest.warns(UserWarning, match=f"ingest has mixed them .mix='{mix}'.. .* make the dataset with mix=\"sequential\""):
        dataset = shardd.StreamingDataset(store, shuffle=False)
    stored = [int(dataset[number]["id"]) for number in range(300)]
    assert [int(sample["id"]) for sample in dataset] == stored != list(range(300))
    with pytest.warns(UserWarning, match="ingest has mixed them"):
        shardd.StreamingDataset(streams=[shardd.Stream(store)], shuffle=False)


def test_sequential_samples_are_read_in_the_order_of_the_source(tmp_path):
    store = of_order(tmp_path, mix="sequential")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset = shardd.StreamingDataset(store, shuffle=False, batch_size=16)
        shuffled = shardd.StreamingDataset(of_order(tmp_path / "mixed"), batch_size=16)
    for read in (dataset, dataset, torch.utils.data.DataLoader(dataset, batch_size=None), shardd.DataLoader(dataset)):
        assert [number for batch in read for number in batch["id"].tolist()] == list(range(300))
    assert len(shuffled) == len(dataset)


def test_a_split_is_a_dataset_of_its_name(tmp_path):
    for split, count in (("train", 30), ("test", 10)):
        shardd.from_iter(({"id": n} for n in range(count)), str(tmp_path), name=f"digits-{split}")
    assert len(shardd.StreamingDataset(str(tmp_path), split="test")) == 10
    assert len(shardd.StreamingDataset(str(tmp_path), dataset="digits", split="train")) == 30
    with pytest.raises(ValueError, match='there are several datasets: pass dataset="digits-test" or dataset="digits-train"'):
        shardd.StreamingDataset(str(tmp_path))


def test_a_second_version_leaves_the_first_one_readable(tmp_path):
    first = shardd.from_iter(({"id": n} for n in range(30)), str(tmp_path), name="digits")
    second = shardd.from_iter(({"id": n} for n in range(40)), str(tmp_path), name="digits", message="more")
    assert first != second and len(shardd.StreamingDataset(str(tmp_path))) == 40
    assert len(shardd.StreamingDataset(str(tmp_path), dataset=f"digits@{first[:12]}")) == 30
    again = shardd.from_iter(({"id": n} for n in range(40)), str(tmp_path), name="digits")
    assert again == second, "the same rows are the same version"
