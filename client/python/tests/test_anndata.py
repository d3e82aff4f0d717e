"""Single-cell data: each cell is a row with the values that AnnData has for it."""

import anndata
import numpy as np
import pandas
import pytest
import scipy.sparse
import torch

import shardd

CELLS, GENES = 230, 40


def matrix(dtype="float32", seed: int = 3) -> scipy.sparse.csr_matrix:
    """Counts, a tenth of which are not 0; one cell has none."""
    made = scipy.sparse.random(CELLS, GENES, 0.1, "csr", rng=np.random.default_rng(seed))
    made.data = np.ceil(made.data * 100)
    made.data[made.indptr[7] : made.indptr[8]] = 0
    made.eliminate_zeros()
    return scipy.sparse.csr_matrix(made.astype(dtype))


def cells(values) -> anndata.AnnData:
    numbers = np.arange(CELLS)
    kinds = pandas.Categorical.from_codes(np.where(numbers % 11 == 0, -1, numbers % 3), ["B cell", "T cell", "monocyte"])
    obs = pandas.DataFrame(
        {
            "cell_type": kinds,
            "n": numbers,
            "share": (numbers / 7).astype(np.float32),
            "is_doublet": numbers % 5 == 0,
            "donor": [f"donor {n % 4}" for n in numbers],
            "id": pandas.array(numbers, "Int32"),
        },
        index=[f"cell {n}" for n in numbers],
    )
    return anndata.AnnData(values, obs=obs, var=pandas.DataFrame(index=[f"gene {n}" for n in range(GENES)]), layers={"counts": matrix("int64", 5)})


MATRICES = {"csr": matrix, "csc": lambda: matrix().tocsc(), "csr array": lambda: scipy.sparse.csr_array(matrix()), "dense": lambda: matrix().toarray()}


def given(data: anndata.AnnData, way: str, folder):
    """The data as a user has it."""
    if way == "memory":
        return data
    if way == "view":
        return anndata.concat([data, data], merge="same", index_unique="-")[:CELLS]
    path = folder / f"cells.{'zarr' if way == 'zarr' else 'h5ad'}"
    data.write_zarr(path) if way == "zarr" else data.write_h5ad(path)
    return anndata.read_h5ad(path, backed="r") if way == "backed" else path


def write(data, out, **how) -> shardd.StreamingDataset:
    """The dataset, in the order of the cells."""
    shardd.from_anndata(data, out, name="cells", mix="sequential", **how)
    return shardd.StreamingDataset(out, shuffle=False, batch_size=64)


def rows(dataset: shardd.StreamingDataset, column: str) -> np.ndarray:
    """The values of all cells, dense."""
    batches = [batch[column] for batch in dataset]
    return np.concatenate([batch.to_scipy().toarray() if isinstance(batch, shardd.Csr) else batch.numpy() for batch in batches])


@pytest.mark.parametrize("chunk_rows", [1024, 64, 1])
@pytest.mark.parametrize("way", ["memory", "view", "h5ad", "backed", "zarr"])
@pytest.mark.parametrize("kind", MATRICES)
def test_every_cell_has_the_values_that_anndata_has(tmp_path, kind, way, chunk_rows):
    data = cells(MATRICES[kind]())
    dataset = write(given(data, way, tmp_path), tmp_path / "store", chunk_rows=chunk_rows)
    assert np.array_equal(rows(dataset, "X"), matrix().toarray())
    batch = next(iter(dataset))
    if kind == "dense":
        assert isinstance(batch["X"], torch.Tensor) and batch["X"].dtype == torch.float32
    else:
        assert batch["X"].shape == (64, GENES) and batch["X"].data.dtype == torch.float32
        assert batch["X"].to_scipy().has_canonical_format


@pytest.mark.parametrize("way", ["memory", "h5ad", "backed", "zarr"])
def test_a_layer_is_a_column_of_its_name_and_type(tmp_path, way):
    dataset = write(given(cells(matrix()), way, tmp_path), tmp_path / "store", layer="counts", obs=[])
    assert dataset.columns == ["counts"] and next(iter(dataset))["counts"].data.dtype == torch.int64
    assert np.array_equal(rows(dataset, "counts"), matrix("int64", 5).toarray())


@pytest.mark.parametrize("way", ["memory", "h5ad", "zarr"])
def test_the_columns_of_obs_come_along_and_categories_are_labels(tmp_path, way):
    data = cells(matrix())
    dataset = write(given(data, way, tmp_path), tmp_path / "store")
    assert dataset.columns == ["X", *data.obs.columns] and dataset.classes == ["B cell", "T cell", "monocyte"]
    read = dataset[:]
    assert read["cell_type"].tolist() == data.obs["cell_type"].cat.codes.tolist() and read["cell_type"].dtype == torch.int64
    for column in ("n", "share", "is_doublet", "id"):
        assert read[column].tolist() == data.obs[column].tolist(), column
    donors = [dataset._schema["donor"]["metadata"].get("shardd.classes"), read["donor"]]
    if donors[0] is None:
        assert donors[1] == data.obs["donor"].tolist()
    else:  # AnnData writes text of few values as categories.
        assert [f"donor {n}" for n in donors[1].tolist()] == data.obs["donor"].tolist()


def test_the_number_of_features_is_that_of_the_genes_unless_it_is_given(tmp_path):
    write(cells(matrix()), tmp_path)
    assert next(iter(shardd.DataLoader(shardd.StreamingDataset(tmp_path), 16)))["X"].features == GENES
    assert shardd.StreamingDataset(tmp_path, features=50)[0:4]["X"].features == 50
    batch = shardd.StreamingDataset(tmp_path)[3:5]["X"]
    assert batch.to_torch().shape == (2, GENES) and batch[:1].features == GENES


def test_a_mixed_order_keeps_each_cell_whole(tmp_path):
    data = cells(matrix())
    shardd.from_anndata(data, tmp_path, name="cells", mix="cell_type", chunk_rows=50)
    for batch in shardd.DataLoader(shardd.StreamingDataset(tmp_path), batch_size=32):
        assert np.array_equal(batch["X"].to_scipy().toarray(), data.X[batch["n"].numpy()].toarray())


def test_the_users_matrix_stays_as_it_is(tmp_path):
    """Indices out of order and twice, which a canonical row has not."""
    values = scipy.sparse.csr_matrix((np.array([1, 2, 3], "f4"), np.array([4, 1, 4]), np.array([0, 3])), shape=(1, 6))
    data = anndata.AnnData(values)
    dataset = write(data, tmp_path)
    assert rows(dataset, "X").tolist() == [[0, 2, 0, 0, 4, 0]]
    assert data.X.indices.tolist() == [4, 1, 4]


def test_booleans_are_bytes_and_numbers_are_little_endian(tmp_path):
    dense = matrix().toarray() > 0
    assert np.array_equal(rows(write(anndata.AnnData(dense), tmp_path / "dense"), "X"), dense.astype(np.uint8))
    sparse = matrix().astype(bool)
    assert np.array_equal(rows(write(anndata.AnnData(sparse), tmp_path / "sparse"), "X"), dense.astype(np.uint8))
    large = anndata.AnnData(matrix().toarray().astype(">f8"))
    assert np.array_equal(rows(write(large, tmp_path / "large"), "X"), matrix().toarray())


def broken(**obs) -> anndata.AnnData:
    data = cells(matrix())
    for name, values in obs.items():
        data.obs[name] = values
    return data


@pytest.mark.parametrize(
    ("data", "how", "error", "message"),
    [
        (lambda: cells(matrix()), {"layer": "raw"}, ValueError, "there is no layer 'raw'; the layers are counts"),
        (lambda: cells(matrix()), {"obs": ["age"]}, ValueError, "obs has no column 'age'; there are cell_type, n, share"),
        (lambda: cells(matrix()), {"obs": "n"}, TypeError, r"obs='n': give a list of columns, such as obs=\['n'\]"),
        (lambda: cells(matrix()), {"chunk_rows": 0}, ValueError, "chunk_rows=0 reads nothing"),
        (lambda: broken(age=pandas.array([None, *range(1, CELLS)], "Int64")), {}, ValueError, "obs column 'age' has no value in 1 cells: fill them, or name"),
        (lambda: broken(note=[None, *["a"] * (CELLS - 1)]), {}, ValueError, "obs column 'note' has no value in 1 cells"),
        (lambda: broken(day=pandas.Timestamp("2026-01-01")), {}, ValueError, "obs column 'day' of datetime64.* cannot be kept"),
        (lambda: broken(X=0), {}, ValueError, "obs has a column 'X', as the values have"),
        (lambda: anndata.AnnData(obs=pandas.DataFrame(index=["a"])), {}, ValueError, "X is empty; there are no layers"),
        (lambda: cells(matrix())[:0], {}, ValueError, "there are no cells"),
        (lambda: anndata.AnnData(matrix().astype(complex)), {}, ValueError, "X has values of type complex128, which cannot be kept"),
        (lambda: matrix(), {}, TypeError, "csr_matrix is no AnnData: pass an anndata.AnnData, or the path of an .h5ad"),
        (lambda: "cells.loom", {}, FileNotFoundError, "cells.loom: no such file"),
        (lambda: __file__, {}, ValueError, "test_anndata.py is neither an .h5ad file nor a .zarr directory"),
    ],
)
def test_what_cannot_be_kept_is_named_and_nothing_is_made(tmp_path, data, how, error, message):
    with pytest.raises(error, match=message):
        shardd.from_anndata(data(), tmp_path / "store", name="cells", **how)
    assert not (tmp_path / "store").exists()


def test_a_file_without_the_layer_names_those_there_are(tmp_path):
    path = given(cells(matrix()), "h5ad", tmp_path)
    with pytest.raises(ValueError, match="cells.h5ad: there is no layer 'raw'; the layers are counts"):
        shardd.from_anndata(path, tmp_path / "store", name="cells", layer="raw")


def test_a_missing_anndata_is_named(tmp_path, monkeypatch):
    import sys

    path = given(cells(matrix()), "h5ad", tmp_path)
    monkeypatch.setitem(sys.modules, "anndata.io", None)
    with pytest.raises(ImportError, match="reading .*cells.h5ad needs anndata: pip install anndata"):
        shardd.from_anndata(path, tmp_path / "store", name="cells")


def test_values_that_fail_midway_commit_nothing(tmp_path):
    class Failing:
        """Values that a disk loses after a while."""

        def __init__(self, values) -> None:
            self.values, self.shape = values, values.shape

        def __getitem__(self, part):
            if part.start >= 100:
                raise OSError("the disk is gone")
            return self.values[part]

    data = cells(matrix())
    holder = type("Holder", (), {"X": Failing(matrix()), "obs": data.obs, "layers": {}, "n_obs": CELLS, "n_vars": GENES})()
    with pytest.raises(OSError, match="the disk is gone"):
        shardd.from_anndata(holder, tmp_path / "store", name="cells", chunk_rows=50)
    assert not (tmp_path / "store").exists()
