"""Batches for TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from . import _formats
from ._ragged import Ragged

if TYPE_CHECKING:
    import tensorflow

    from ._loader import DataLoader


def as_tf_dataset(loader: DataLoader) -> tensorflow.data.Dataset:
    """The batches of the loader, as a ``tf.data.Dataset`` of dicts of tensors. Each iteration reads the loader's next epoch. States
    are the loader's, and count the batches that TensorFlow has taken.

    Columns of one shape are tensors; bytes and text are strings; lists of different lengths are ragged. A ``transform`` or
    ``collate_fn`` may return any type, so a loader that has one is refused: ``map`` the dataset.
    """
    import tensorflow as tf
    from numpy import asarray

    if loader._chain is not None or loader.transform is not None or loader.collate_fn is not None:
        raise ValueError("TensorFlow has to know types and shapes before the first batch: map the tf.data.Dataset rather than transform")
    dataset = loader.dataset
    if (dataset._format or "numpy") not in ("numpy", "torch"):
        raise ValueError(f'format={dataset._format!r}: TensorFlow takes batches of format="numpy"')
    layout, dtype = dataset._image
    # As a short last step may have fewer samples, none of the sizes is known that counts them.
    specs = {name: _spec(tf, dataset._schema[name], layout, dtype) for name in dataset.columns}

    def convert(name: str, values: Any) -> Any:
        spec = specs[name]
        if isinstance(spec, tf.RaggedTensorSpec):
            if not isinstance(values, Ragged) or values.nulls:
                raise ValueError(f"column {name!r} has nulls in this batch, which TensorFlow's ragged tensors cannot say; fill them at ingest")
            return tf.RaggedTensor.from_row_splits(asarray(values.values), asarray(values.offsets), validate=False)
        if isinstance(values, Ragged):
            return values.to_list()
        return values.numpy() if hasattr(values, "numpy") else values

    def batches() -> Iterator[dict[str, Any]]:
        for batch in loader:
            yield {name: convert(name, values) for name, values in batch.items()}

    return tf.data.Dataset.from_generator(batches, output_signature=specs)


def _spec(tf: Any, column: dict[str, Any], layout: str | None, dtype: str | None) -> Any:
    shape, number = column["shape"], column["number"]
    if number is None:
        if column["type"] in ("Utf8", "LargeUtf8", "Binary", "LargeBinary"):
            return tf.TensorSpec((None,), tf.string)
        if column["items"] is not None:
            return tf.RaggedTensorSpec((None, None), tf.as_dtype(column["items"]), ragged_rank=1)
        raise ValueError(f"column {column['name']!r} ({column['type']}) is nothing that TensorFlow takes; leave it out with columns=[...]")
    shape, number = _formats.image_spec(shape, number, layout, dtype)
    return tf.TensorSpec((None, *shape), tf.as_dtype(number))
