"""Batches of packed documents for attention without padding.

``shardctl ingest --tokenizer … --sequence-length N --packing best_fit_decreasing`` makes rows that have whole documents. A batch
of them becomes one row for attention that stays inside documents::

    for batch in shardd.DataLoader(dataset, batch_size=8):
        loss = model(**packing.flatten(batch)).loss

The keys are those of ``DataCollatorWithFlattening(return_flash_attn_kwargs=True)`` of transformers. :func:`next_token` keeps the
rows apart, with padding, for models that take batches of one shape.

With ``--chat-template``, the documents are conversations, and column ``loss_mask`` has a 1 for each token with a loss. Both functions
take it into account.
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
    loss_mask: str | None = "loss_mask",
) -> dict[str, Any]:
    """A batch of ``n`` sequences as one row of the ``t`` tokens that are in documents; padding is left out.

    ``tokens``, ``documents`` and ``length`` are the columns of sequences: int of ``[n, N]``, a :class:`shardd.Ragged` of places
    where documents begin, and int of ``[n]``. Without a column ``length``, all ``N`` tokens of a sequence are in documents.
    ``labels`` is a column of labels of ``[n, N]``; by default the labels are the tokens. Where the batch has a column ``loss_mask``
    (``[n, N]``), the label of a token with 0 there is -100; with ``loss_mask=None`` it has no meaning.

    The result has ``input_ids`` and ``labels`` (int64, ``[1, t]``), ``position_ids`` (int64, ``[1, t]``, from 0 in each
    document), ``cu_seq_lens_q`` and ``cu_seq_lens_k`` (int32, where documents begin, and ``t``), and ``max_length_q`` and
    ``max_length_k``. The first label of each document is -100: it has no predecessor. The tensors are of PyTorch."""
    import numpy
    import torch

    ids = _ids(batch, "flatten takes a batch of packed sequences", tokens, documents, labels)
    rows, width = ids.shape
    used = _array(batch[length]) if length in batch else numpy.full(rows, width)
    begins = _begins(batch[documents], used)
    ends = numpy.cumsum(used)
    kept = (torch.arange(width)[None, :] < torch.as_tensor(used.astype(numpy.int64))[:, None]).to(ids.device)
    flat = ids[kept].long()
    bounds = numpy.append(begins, ends[-1] if rows else 0).astype(numpy.int32)
    lengths = numpy.diff(bounds)
    positions = numpy.arange(len(flat)) - numpy.repeat(bounds[:-1], lengths)
    own = _labels(batch, ids, labels, loss_mask)[kept]
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


def next_token(
    batch: Mapping[str, Any],
    *,
    tokens: str = "tokens",
    documents: str = "documents",
    length: str = "length",
    labels: str | None = None,
    loss_mask: str | None = "loss_mask",
) -> dict[str, Any]:
    """A batch of ``n`` sequences of ``N`` tokens with the label of each token: the next token of its document.

    ``tokens``, ``documents``, ``length``, ``labels`` and ``loss_mask`` are columns as in :func:`flatten`. Without a column
    ``documents``, each sequence is one document.

    The result has ``input``, ``labels`` and ``positions``, all int64 of ``[n, N]``, on the device of the tokens. Positions begin at 0
    in each document, and in the padding. The label of the last token of each document, and of padding, is -100: no token of the same
    document follows. A sequence that ends within a document has no next token for its last one, either. The label is -100, too, where
    the next token has a 0 in ``loss_mask``.

    Raises ``ValueError`` if a column is missing, or has another shape."""
    import torch

    ids = _ids(batch, "next_token takes a batch of sequences", tokens, labels).long()
    width, device = ids.shape[1], ids.device
    places = torch.arange(width, device=device)
    begins = _marked(batch.get(documents), ids)
    following = _labels(batch, ids, labels, loss_mask)
    shifted = torch.full_like(ids, IGNORED)
    shifted[:, :-1] = following[:, 1:]
    if length in batch:
        used = torch.as_tensor(batch[length]).long().to(device)[:, None]
        begins |= places == used
        shifted[places >= used] = IGNORED
    shifted[:, :-1][begins[:, 1:]] = IGNORED
    starts = torch.where(begins, places, 0).cummax(1).values
    return {"input": ids, "labels": shifted, "positions": places - starts}


def _ids(batch: Mapping[str, Any], takes: str, tokens: str, *others: str | None) -> Any:
    """The tokens of a batch, which has the other columns that are named, too."""
    import torch

    for name in (tokens, *others):
        if name is not None and name not in batch:
            raise ValueError(f"{takes}, and column {name!r} is not among {', '.join(batch)}")
    ids = torch.as_tensor(batch[tokens])
    if ids.ndim != 2:
        raise ValueError(f"column {tokens!r} has the shape {list(ids.shape)}: give a version made with --sequence-length")
    return ids


def _labels(batch: Mapping[str, Any], ids: Any, labels: str | None, loss_mask: str | None) -> Any:
    """The label of each token itself, as int64 of ``[n, N]``: -100 where the batch has a loss mask of 0."""
    import torch

    def of_tokens(name: str) -> Any:
        values = torch.as_tensor(batch[name]).to(ids.device)
        if values.shape != ids.shape:
            shapes = f"column {name!r} has the shape {list(values.shape)}, and the tokens {list(ids.shape)}"
            raise ValueError(f"{shapes}: give one value for each token")
        return values

    own = (ids if labels is None else of_tokens(labels)).long()
    return own.masked_fill(of_tokens(loss_mask) == 0, IGNORED) if loss_mask in batch else own


def _marked(documents: Any, ids: Any) -> Any:
    """Which tokens begin a document, as bool of ``[n, N]``. The first token of each row does."""
    import torch

    marks = torch.zeros(ids.shape, dtype=torch.bool)
    marks[:, :1] = True
    for row, starts in enumerate(documents if documents is not None else ()):
        places = torch.as_tensor(starts).long()
        if len(places) and not 0 <= int(places.min()) <= int(places.max()) < ids.shape[1]:
            raise ValueError(f"row {row} has documents that begin at {places.tolist()}, outside of its {ids.shape[1]} tokens")
        marks[row, places] = True
    return marks.to(ids.device)


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
