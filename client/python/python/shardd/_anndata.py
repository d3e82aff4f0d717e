"""Datasets made of single-cell data."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from . import _native
from ._place import open_store

if TYPE_CHECKING:
    import numpy as np

# A column as it is written: its type, the shape of a value, and the names of its classes.
_Kind = tuple[str, Sequence[int] | None, Sequence[str] | None]


def from_anndata(
    data: Any,
    out: str | os.PathLike[str],
    *,
    name: str,
    layer: str | None = None,
    obs: Sequence[str] | None = None,
    chunk_rows: int = 1024,
    mix: str = "random",
    seed: int = 0,
    shard_size: str | None = None,
    message: str = "",
    storage_options: Any = None,
) -> str:
    """As :func:`shardd.from_iter`, of single-cell data: a row for each cell.

    ``data`` is an ``anndata.AnnData``, in memory or backed, or the path of an ``.h5ad`` file or a ``.zarr`` directory, which is read
    in parts of ``chunk_rows`` cells.

    Column ``X`` has the values of ``X``; with ``layer``, a column of that name has those of the layer. Sparse values come back as
    :class:`shardd.Csr` of as many features as there are genes, in the order of ``var_names``. Dense ones come back as tensors. Types
    stay as they are.

    ``obs`` names the columns of ``obs`` to keep, by default all: numbers, booleans and text as they are, and categories as integers
    (int64) with their names as classes. A cell without a category has -1. Other missing values are refused.

    A sparse matrix that is stored by columns (CSC) is turned in memory, as a whole.
    """
    if chunk_rows < 1:
        raise ValueError(f"chunk_rows={chunk_rows} reads nothing; use at least 1")
    store = open_store(os.fspath(out), **(storage_options or {}))
    with ExitStack() as files:
        values, table, rows, width = _opened(data, layer, files)
        column = layer or "X"
        parts = _parts(values, rows, width, chunk_rows)
        if (first := next(parts, None)) is None:
            raise ValueError("there are no cells")
        kinds: dict[str, _Kind] = {column: _kind_of(first, column)}
        cells: dict[str, Any] = {}
        for key in _chosen(table, obs):
            if key == column:
                raise ValueError(f"obs has a column {key!r}, as the values have: rename it, or leave it out with obs=[...]")
            cells[key], names = _obs(table[key], key)
            kinds[key] = ("text", None, None) if isinstance(cells[key], list) else (cells[key].dtype.str, None, names)
        columns = [(key, *kind) for key, kind in kinds.items()]
        writer = _native.Rows(store, name, columns, mix=mix, seed=seed, shard_size=shard_size, message=message)
        try:
            start, part = 0, first
            while part is not None:
                count = part.shape[0]
                of_cells = (each[start : start + count] for each in cells.values())
                writer.write(count, [_bytes_of_matrix(part), *(each if isinstance(each, list) else _bytes(each) for each in of_cells)])
                start += count
                part = next(parts, None)
        except BaseException:
            writer.abandon()
            raise
        return writer.finish()


def _opened(data: Any, layer: str | None, files: ExitStack) -> tuple[Any, Any, int, int]:
    """The values of the cells, the table of their other columns, and how many cells and genes there are."""
    if not isinstance(data, (str, os.PathLike)):
        if not all(hasattr(data, part) for part in ("obs", "layers", "X", "n_vars")):
            raise TypeError(f"{type(data).__name__} is no AnnData: pass an anndata.AnnData, or the path of an .h5ad file or a .zarr directory")
        if layer is not None and layer not in data.layers:
            raise ValueError(f"there is no layer {layer!r}; {_there(data.layers)}")
        values = data.X if layer is None else data.layers[layer]
        if values is None:
            raise ValueError(f"X is empty; {_there(data.layers)}: name one with layer=...")
        return values, data.obs, data.n_obs, data.n_vars
    path = os.fspath(data)
    root = _open_file(path, files)
    from anndata.io import read_elem, sparse_dataset

    layers = root["layers"] if "layers" in root else {}
    if layer is not None and layer not in layers:
        raise ValueError(f"{path}: there is no layer {layer!r}; {_there(layers)}")
    if layer is None and "X" not in root:
        raise ValueError(f"{path}: X is empty; {_there(layers)}: name one with layer=...")
    stored = root["X"] if layer is None else layers[layer]
    table = read_elem(root["obs"])
    is_sparse = str(stored.attrs.get("encoding-type", "")) in ("csr_matrix", "csc_matrix")
    values = sparse_dataset(stored) if is_sparse else stored
    return values, table, len(table), values.shape[1]


def _open_file(path: str, files: ExitStack) -> Any:
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path}: no such file or directory")
    is_zarr = os.path.isdir(path) and path.rstrip("/").endswith(".zarr")
    if not is_zarr and not path.endswith(".h5ad"):
        raise ValueError(f"{path} is neither an .h5ad file nor a .zarr directory: read it with anndata, and pass the AnnData")
    try:
        import anndata.io  # noqa: F401
    except ImportError as error:
        raise ImportError(f"reading {path} needs anndata: pip install anndata") from error
    if is_zarr:
        import zarr

        return zarr.open_group(path, mode="r")
    import h5py

    return files.enter_context(h5py.File(path, "r"))


def _there(layers: Any) -> str:
    return f"the layers are {', '.join(layers)}" if len(layers) else "there are no layers"


def _parts(values: Any, rows: int, width: int, chunk_rows: int) -> Iterator[Any]:
    """The values of consecutive cells, dense or in canonical CSR."""
    import numpy as np

    if len(values.shape) != 2 or values.shape != (rows, width):
        raise ValueError(f"the values have shape {tuple(values.shape)}, and there are {rows} cells and {width} genes")
    if getattr(values, "format", None) == "csc":
        # Backed by a file: rows of columns cannot be read apart.
        values = (values.to_memory() if hasattr(values, "to_memory") else values).tocsr()
    for start in range(0, rows, chunk_rows):
        part = values[start : start + chunk_rows]
        if hasattr(part, "compute"):  # of dask
            part = part.compute()
        if not hasattr(part, "tocsr"):
            yield np.ascontiguousarray(part)
            continue
        part = part.tocsr()
        if not part.has_canonical_format:
            part = part.copy()  # A slice of all rows is the user's matrix.
            part.sum_duplicates()
        yield part


def _kind_of(part: Any, column: str) -> _Kind:
    dtype = part.dtype
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise ValueError(f"{column} has values of type {dtype}, which cannot be kept: convert them to numbers, such as float32")
    text = "|u1" if dtype.kind == "b" else dtype.newbyteorder("<").str
    return (f"sparse {text}" if hasattr(part, "indptr") else text), (part.shape[1],), None


def _bytes_of_matrix(part: Any) -> Any:
    import numpy as np

    if not hasattr(part, "indptr"):
        return _bytes(part)
    lengths = np.diff(part.indptr).astype(np.int64)
    return _bytes(lengths), _bytes(part.indices.astype(np.uint32)), _bytes(part.data)


def _bytes(array: Any) -> np.ndarray[Any, Any]:
    """The bytes of numbers, of which the first is the lowest."""
    import numpy as np

    array = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return array.reshape(-1).view(np.uint8)


def _chosen(table: Any, obs: Sequence[str] | None) -> list[str]:
    there = [str(key) for key in table.columns]
    if obs is None:
        return there
    if isinstance(obs, str):
        raise TypeError(f"obs={obs!r}: give a list of columns, such as obs=[{obs!r}]")
    if unknown := [key for key in obs if key not in there]:
        raise ValueError(f"obs has no column {unknown[0]!r}; there are {', '.join(there) or 'none'}")
    return list(obs)


def _obs(values: Any, key: str) -> tuple[Any, list[str] | None]:
    """The values of a column of pandas, an array or a list of texts, and the names of its classes."""
    import numpy as np

    if hasattr(values, "cat"):
        return values.cat.codes.to_numpy(np.int64), [str(name) for name in values.cat.categories]
    kind = getattr(values.dtype, "kind", "O")
    if kind in "biuf" and values.dtype.itemsize <= 8:
        if isinstance(values.dtype, np.dtype):
            return values.to_numpy().astype(values.dtype.newbyteorder("<")), None
        if not values.isna().any():
            return values.to_numpy(values.dtype.numpy_dtype), None
    elif all(isinstance(value, str) for value in values):
        return [str(value) for value in values], None
    missing = int(values.isna().sum())
    if missing:
        raise ValueError(f"obs column {key!r} has no value in {missing} cells: fill them, or name other columns in obs=[...]")
    raise ValueError(f"obs column {key!r} of {values.dtype} cannot be kept: convert it to numbers, categories or text, or name other columns in obs=[...]")
