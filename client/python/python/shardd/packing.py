"""Batches of packed documents for attention without padding.

``shardctl ingest --tokenizer … --sequence-length N --packing best_fit_decreasing`` makes rows that have whole documents. A batch
of them becomes one row for attention that stays inside documents::

    for batch in shardd.DataLoader(dataset, batch_size=8):
        loss = model(**packing.flatten(batch)).loss

The keys are those of ``DataCollatorWithFlattening(return_flash_attn_kwargs=True)`` of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._ragged import _array

IGNORED = -100
"""The label that the loss of transformers and ``torch.nn.functional.cross_entropy`` leaves out."""


def flatten(
    batch: Mapping[str, Any],
    *,
    tokens: str = "tokens",
    documents: str = "documents",
    length: str = "length",
    labels: str | None = None,
) -> dict[str, Any]:
    """A batch of ``n`` sequences as one row of the ``t`` tokens that are in documents; padding is left out.

    ``tokens``, ``documents`` and ``length`` are the columns of sequences: int of ``[n, N]``, a :class:`shardd.Ragged` of places
    where documents begin, and int of ``[n]``. Without a column ``length``, all ``N`` tokens of a sequence are in documents.
    ``labels`` is a column of labels of ``[n, N]``; by default the labels are the tokens.

    The result has ``input_ids`` and ``labels`` (int64, ``[1, t]``), ``position_ids`` (int64, ``[1, t]``, from 0 in each
    document), ``cu_seq_lens_q`` and ``cu_seq_lens_k`` (int32, where documents begin, and ``t``), and ``max_length_q`` and
    ``max_length_k``. The first label of each document is -100: it has no predecessor. The tensors are of PyTorch."""
    import numpy
    import torch

    for name in (tokens, documents, *([labels] if labels is not None else [])):
        if name not in batch:
            raise ValueError(f"flatten takes a batch of packed sequences, and column {name!r} is not among {', '.join(batch)}")
    ids = torch.as_tensor(batch[tokens])
    if ids.ndim != 2:
        raise ValueError(f"column {tokens!r} has the shape {list(ids.shape)}: give a version made with --sequence-length")
    rows, width = ids.shape
    used = _array(batch[length]) if length in batch else numpy.full(rows, width)
    begins = _begins(batch[documents], used)
    ends = numpy.cumsum(used)
    kept = (torch.arange(width)[None, :] < torch.as_tensor(used.astype(numpy.int64))[:, None]).to(ids.device)
    flat = ids[kept].long()
    bounds = numpy.append(begins, ends[-1] if rows else 0).astype(numpy.int32)
    lengths = numpy.diff(bounds)
    positions = numpy.arange(len(flat)) - numpy.repeat(bounds[:-1], lengths)
    own = flat.clone() if labels is None else torch.as_tensor(batch[labels])[kept].long()
    own[torch.as_tensor(bounds[:-1].astype(numpy.int64)).to(ids.device)] = IGNORED
    cu_seq_lens, longest = torch.as_tensor(bounds).to(ids.device), int(lengths.max(initial=0))
    return {
        "input_ids": flat[None],
        "labels": own[None],
        "position_ids": torch.as_tensor(positions).to(ids.device)[None],
        "cu_seq_lens_q": cu_seq_lens,
        "cu_seq_lens_k": cu_seq_lens,
        "max_length_q": longest,
        "max_length_k": longest,
    }


def _begins(documents: Any, used: Any) -> Any:
    """Where documents begin among all tokens. A sequence that begins within a document begins one of its own."""
    import numpy

    begins, before = [], 0
    for starts, count in zip(documents, used.tolist(), strict=True):
        starts = _array(starts).astype(numpy.int64)
        if count and (not len(starts) or starts[0] != 0):
            starts = numpy.concatenate([[0], starts])
        begins.append(starts + before)
        before += count
    return numpy.concatenate(begins) if begins else numpy.zeros(0, dtype=numpy.int64)
