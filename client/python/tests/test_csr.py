"""Sparse rows, for SciPy and PyTorch."""

import pickle
import random

import numpy as np
import pyarrow.parquet
import pytest
import scipy.sparse
import torch

import shardd
from shardd import _device
from helpers import ingest

ROWS, FEATURES = 300, 1000


def lines() -> list[str]:
    """libsvm's text, some rows of which have no features."""
    draw = random.Random(5)
    rows = []
    for number in range(ROWS):
        indices = sorted(draw.sample(range(1, FEATURES), draw.randrange(0, 20)))
        rows.append(" ".join([str(number % 3), *(f"{index}:{draw.randrange(1, 64) / 8}" for index in indices)]))
    return rows


def reference(text: list[str]) -> tuple[np.ndarray, scipy.sparse.csr_array]:
    """Labels and matrix of libsvm's text, cell by cell."""
    matrix = scipy.sparse.lil_array((len(text), FEATURES), dtype=np.float32)
    labels = []
    for row, line in enumerate(text):
        label, *features = line.split()
        labels.append(int(label))
        for index, value in (feature.split(":") for feature in features):
            matrix[row, int(index)] = float(value)
    return np.array(labels), matrix.tocsr()


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("sparse")
    (folder / "rows.libsvm").write_text("\n".join(lines()))
    ingest_in_order(folder / "store", folder / "rows.libsvm")
    return str(folder / "store")


def ingest_in_order(store, path) -> None:
    ingest(store, "rows", path, "--mix", "sequential", "--shard-size", "4KiB")


def opened(store, **how) -> shardd.StreamingDataset:
    return shardd.StreamingDataset(str(store), shuffle=False, batch_size=32, **how)


@pytest.mark.parametrize("format", ["torch", "numpy"])
def test_rows_of_libsvm_are_the_matrix_of_their_text(store, format):
    labels, expected = reference(lines())
    kind = torch.Tensor if format == "torch" else np.ndarray
    matrices, dense, seen = [], [], []
    for batch in shardd.DataLoader(opened(store, features=FEATURES, format=format)):
        sparse = batch["features"]
        assert isinstance(sparse, shardd.Csr) and sparse.shape == (len(sparse), FEATURES) == (len(batch["label"]), FEATURES)
        parts = (sparse.indptr, sparse.indices, sparse.data)
        assert all(isinstance(part, kind) for part in parts)
        assert [str(part.dtype).removeprefix("torch.") for part in parts] == ["int32", "int32", "float32"]
        matrix = sparse.to_scipy()
        assert isinstance(matrix, scipy.sparse.csr_array) and matrix.has_canonical_format
        assert np.shares_memory(matrix.data, np.asarray(sparse.data)) and np.shares_memory(matrix.indices, np.asarray(sparse.indices))
        matrices.append(matrix)
        tensor = sparse.to_torch()
        assert tensor.layout == torch.sparse_csr and tensor.shape == sparse.shape
        dense.append(tensor.to_dense())
        seen += batch["label"].tolist()
    assert (scipy.sparse.vstack(matrices) != expected).nnz == 0 and seen == labels.tolist()
    assert np.array_equal(torch.cat(dense).numpy(), expected.toarray())


def test_a_linear_model_takes_them(store):
    _, expected = reference(lines())
    weights = torch.rand(FEATURES, 2, generator=torch.Generator().manual_seed(0))
    scores = torch.cat([batch["features"].to_torch() @ weights for batch in opened(store, features=FEATURES)])
    assert torch.allclose(scores, torch.from_numpy(expected.toarray()) @ weights, atol=1e-4)


def test_rows_and_slices_of_a_batch(store):
    _, expected = reference(lines())
    sparse = next(iter(opened(store, features=FEATURES)))["features"]
    for number, (indices, values) in enumerate(sparse):
        row = expected[[number]]
        assert indices.tolist() == row.indices.tolist() and values.tolist() == row.data.tolist()
        assert [part.tolist() for part in sparse[number]] == [indices.tolist(), values.tolist()]
    for part in (slice(3, 9), slice(-4, None), slice(5, 5), slice(9, 2), slice(None, 99)):
        assert (sparse[part].to_scipy() != expected[:32][part]).nnz == 0
    assert (pickle.loads(pickle.dumps(sparse)).to_scipy() != expected[:32]).nnz == 0
    assert torch.equal(_device.apply(lambda tensor: tensor + 1, {"x": sparse})["x"].data, sparse.data + 1)
    assert sparse.to(torch.float64).to_torch().dtype == torch.float64 and sparse.to("meta").data.device.type == "meta"
    one = opened(store)[7]["features"]
    assert one[0].tolist() == expected[[7]].indices.tolist()
    with pytest.raises(IndexError, match="no row 32 of 32"):
        sparse[32]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_torch_loader_gives_them_as_they_are(store, workers):
    _, expected = reference(lines())
    batches = torch.utils.data.DataLoader(opened(store, features=FEATURES), batch_size=None, num_workers=workers)
    assert (scipy.sparse.vstack([batch["features"].to_scipy() for batch in batches]) != expected).nnz == 0


def test_a_number_of_features_that_is_missing_or_too_small_is_named(store):
    batch = next(iter(opened(store)))["features"]
    most = int(batch.indices.max())
    assert batch.shape == (32, None)
    for change in (batch.to_scipy, batch.to_torch):
        with pytest.raises(ValueError, match=f"pass features=... to StreamingDataset.*of this batch that is {most}"):
            change()
        with pytest.raises(ValueError, match=f"index {most} is outside of features={most}: columns are 0 to {most - 1}"):
            change(features=most)
        assert tuple(change(features=most + 1).shape) == (32, most + 1)
    with pytest.raises(ValueError, match="features=0 leaves no columns"):
        opened(store, features=0)


PAIRS = [[], [(5, 1.5)], [(0, 2.0), (1 << 33, -1.0)], [(7, 0.5)]]


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("large", [False, True])
def test_pairs_of_parquet_have_indices_of_64_bits_and_perhaps_nulls(tmp_path, large, nulls):
    pair = pyarrow.struct([pyarrow.field("index", pyarrow.int64(), nullable=False), pyarrow.field("value", pyarrow.float64(), nullable=False)])
    rows = [*PAIRS, *([None] if nulls else [])] * 8
    rows = [None if row is None else [{"index": index, "value": value} for index, value in row] for row in rows]
    column = pyarrow.array(rows, (pyarrow.large_list if large else pyarrow.list_)(pair))
    pyarrow.parquet.write_table(pyarrow.table({"x": column}), tmp_path / "rows.parquet")
    ingest_in_order(tmp_path / "store", tmp_path / "rows.parquet")
    sparse = next(iter(opened(tmp_path / "store", format="numpy")))["x"]
    assert (sparse.indptr.dtype, sparse.indices.dtype, sparse.data.dtype) == (np.int64, np.int64, np.float64)
    got = [None if row is None else list(zip(*map(np.ndarray.tolist, row))) for row in sparse]
    assert got == ([*PAIRS, None] * 7 if nulls else PAIRS * 8)[:32]
    if nulls:
        with pytest.raises(ValueError, match=r"rows are null, which a sparse matrix cannot say"):
            sparse.to_scipy(features=1 << 34)
    else:
        assert sparse.to_scipy(features=1 << 34).sum() == 8 * 3.0
