"""Shuffled, exactly resumable, elastic training data.

A dataset lies in a directory or a bucket (``shardctl ingest``, or :func:`from_iter` and its like), or on nodes
(``shardd serve``). A plan fixes the order of every epoch; a pure function of it assigns samples to ranks, so
training resumes at the exact sample with any number of ranks.

Importing the package, or making a dataset or loader, starts no thread: threads begin with the first batch.
"""

from . import audio_transforms, column_transforms, packing, transforms
from ._anndata import from_anndata
from ._csr import Csr
from ._dataset import StreamingDataset
from ._device import to_device
from ._headspace import Headspace, headspace
from ._ingest import from_arrow, from_hf, from_iter, from_torch
from ._loader import DataLoader
from ._ragged import Ragged
from ._ranks import Ranks
from ._sampler import Sampler
from ._state import StateMismatch
from ._streams import Stream, linear_schedule
from ._tf import as_tf_dataset
from ._tokenizer import Tokenizer

__all__ = [
    "Csr",
    "DataLoader",
    "Headspace",
    "Ragged",
    "Ranks",
    "Sampler",
    "StateMismatch",
    "Stream",
    "StreamingDataset",
    "Tokenizer",
    "as_tf_dataset",
    "audio_transforms",
    "column_transforms",
    "from_anndata",
    "from_arrow",
    "from_hf",
    "from_iter",
    "from_torch",
    "headspace",
    "linear_schedule",
    "packing",
    "to_device",
    "transforms",
]
