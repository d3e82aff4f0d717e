"""Sparse rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, overload

from . import _native
from ._ragged import _array

if TYPE_CHECKING:
    import scipy.sparse
    import torch


class Csr:
    """The sparse rows of a batch (lists of pairs ``index`` and ``value``, as libsvm files give them), as a matrix in compressed
    sparse row form. Row ``i`` has the values ``data[indptr[i]:indptr[i + 1]]`` in the columns ``indices[indptr[i]:indptr[i + 1]]``.
    All three are tensors in the dataset's format. Values and indices of 32 bits are not copied.

    Columns are the indices as they were written. In a file that counts features from 1, as most libsvm files do, column 0 has no
    values. This is the matrix of ``sklearn.datasets.load_svmlight_file(zero_based=True)``.

    An index or a loop yields a row as the pair of its indices and its values, and ``None`` for a null. A slice is a ``Csr``.
    """

    __slots__ = ("data", "features", "indices", "indptr", "nulls")

    def __init__(
        self, indptr: Any, indices: Any, data: Any, *, features: int | None = None, nulls: frozenset[int] = frozenset()
    ) -> None:
        #: Where each row begins and the last one ends, from 0 on: of shape ``[len(self) + 1]``, int32 or int64.
        self.indptr = indptr
        #: The column of each value: of shape ``[values]``, of the type of :attr:`indptr`.
        self.indices = indices
        #: The values, of shape ``[values]``; those of libsvm are float32.
        self.data = data
        #: The number of columns of the matrix, if it is known: from ``StreamingDataset(features=...)``, or from the dataset, which has it
        #: after :func:`shardd.from_anndata`.
        self.features = features
        #: The numbers of rows that are missing, which have no values.
        self.nulls = nulls

    @property
    def shape(self) -> tuple[int, int | None]:
        """Rows and features."""
        return len(self), self.features

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def to_scipy(self, features: int | None = None) -> scipy.sparse.csr_array:
        """As a ``scipy.sparse.csr_array`` of shape ``[rows, features]`` in the same memory."""
        from scipy.sparse import csr_array

        parts = (_array(self.data), _array(self.indices), _array(self.indptr))
        return csr_array(parts, shape=(len(self), self._width(features)))

    def to_torch(self, features: int | None = None) -> torch.Tensor:
        """As a ``torch.sparse_csr_tensor`` of shape ``[rows, features]`` in the same memory, on the same device."""
        import torch

        width = self._width(features)
        parts = (torch.as_tensor(part) for part in (self.indptr, self.indices, self.data))
        return torch.sparse_csr_tensor(*parts, size=(len(self), width), check_invariants=False)

    def _width(self, features: int | None) -> int:
        """The number of columns, none of which is missing: libraries do not check, and read beyond their memory."""
        if self.nulls:
            raise ValueError(f"{len(self.nulls)} of {len(self)} rows are null, which a sparse matrix cannot say; fill them at ingest")
        least, most = (int(self.indices.min()), int(self.indices.max())) if len(self.indices) else (0, -1)
        width = features if features is not None else self.features
        if width is None:
            raise ValueError(
                "the number of features is not known from one batch: pass features=... to StreamingDataset, or here, one more than the "
                f"highest index of all samples (of this batch that is {most})"
            )
        if least < 0 or most >= width:
            raise ValueError(f"index {least if least < 0 else most} is outside of features={width}: columns are 0 to {width - 1}")
        return width

    @overload
    def __getitem__(self, index: int) -> tuple[Any, Any] | None: ...
    @overload
    def __getitem__(self, index: slice) -> Csr: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise ValueError("a slice of a Csr has consecutive rows: leave out the step, or use to_scipy()")
            stop = max(start, stop)
            indptr = self.indptr[start : stop + 1]
            first, end = int(indptr[0]), int(indptr[-1])
            nulls = frozenset(number - start for number in self.nulls if start <= number < stop)
            return Csr(indptr - first, self.indices[first:end], self.data[first:end], features=self.features, nulls=nulls)
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(f"there is no row {index} of {len(self)}")
        return self._row(number, int(self.indptr[number]), int(self.indptr[number + 1]))

    def __iter__(self) -> Iterator[tuple[Any, Any] | None]:
        ends = self.indptr.tolist()
        return (self._row(number, start, end) for number, (start, end) in enumerate(zip(ends, ends[1:])))

    def _row(self, number: int, start: int, end: int) -> tuple[Any, Any] | None:
        return None if number in self.nulls else (self.indices[start:end], self.data[start:end])

    def map(self, change: Callable[[Any], Any]) -> Csr:
        """With its three tensors changed, such as moved to a device."""
        parts = change(self.indptr), change(self.indices), change(self.data)
        return Csr(*parts, features=self.features, nulls=self.nulls)

    def to(self, *where: Any, **how: Any) -> Csr:
        """On a device, as ``Tensor.to`` says it; as it is, if it is of another library."""
        if not hasattr(self.data, "to"):
            return self
        moved = self.map(lambda tensor: tensor.to(*where, **how))
        if moved.indices.dtype != self.indices.dtype:  # a type is that of the values
            moved.indptr, moved.indices = self.indptr.to(moved.data.device), self.indices.to(moved.data.device)
        return moved

    def pin_memory(self, *device: Any) -> Csr:
        """In pinned memory, as ``Tensor.pin_memory`` says it; as it is, if it is of another library."""
        return self.map(lambda tensor: tensor.pin_memory(*device)) if hasattr(self.data, "pin_memory") else self

    def __repr__(self) -> str:
        width = "unknown" if self.features is None else self.features
        return f"Csr({len(self)} rows, features {width}, {len(self.data)} values of {self.data.dtype})"


def of_column(column: _native.Column, convert: Callable[[_native.Column], Any], features: int | None) -> Csr | None:
    """What a column has, if it is of lists of pairs ``index`` and ``value``."""
    if (parts := column.csr()) is None:
        return None
    indptr, indices, data, nulls = parts
    if features is None:
        features = column.features
    return Csr(convert(indptr), convert(indices), convert(data), features=features, nulls=frozenset(nulls))
