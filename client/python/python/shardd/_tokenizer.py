"""Tokens of texts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from . import _formats, _native
from ._ragged import Ragged


class Tokenizer:
    """A tokenizer: the ids of Hugging Face ``tokenizers`` and of tiktoken, and those of ``shardctl ingest --tokenizer``.

    Any number of threads may use it at once, and the interpreter's lock is released meanwhile. It can be pickled with the bytes of its
    file, so transforms and ``collate_fn`` in other processes may hold it.

    Text of special tokens, such as ``<|endoftext|>``, becomes these tokens with ``parse_special=True``, as with Hugging Face. For text
    from outside, which must not steer the model, pass ``False``. ``add_special_tokens`` adds the tokens that the tokenizer puts around
    a text. Without both, ids are those of ``encode_ordinary`` of tiktoken.
    """

    __slots__ = ("_encoding", "_file", "_name", "_native")

    def __init__(self, file: bytes, *, encoding: str | None = None, name: str = "bytes") -> None:
        """Of the bytes of a file; see :meth:`from_file`."""
        self._native = _native.Tokenizer(file, encoding)
        self._file, self._encoding, self._name = file, encoding, name

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, encoding: str | None = None) -> Tokenizer:
        """Reads a ``tokenizer.json`` of Hugging Face, or ranks of tiktoken.

        Ranks name no encoding. Those of the known encodings are recognised. For others, pass the ``encoding`` that has their pattern
        and special tokens, such as ``"cl100k_base"``. Truncation and padding of a ``tokenizer.json`` are left out."""
        with open(path, "rb") as file:
            data = file.read()
        try:
            return cls(data, encoding=encoding, name=os.fspath(path))
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from None

    @property
    def vocab_size(self) -> int:
        """One more than the largest id: the rows that an embedding needs."""
        return self._native.vocab_size

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        """The ids of a text."""
        return self._native.encode(text, add_special_tokens, parse_special)

    def encode_batch(
        self,
        texts: Iterable[str],
        *,
        add_special_tokens: bool = True,
        parse_special: bool = True,
        threads: int | None = None,
        format: str | None = None,
    ) -> Ragged:
        """The ids of each text: :class:`shardd.Ragged` with values and offsets of int64, the type of embeddings and losses.

        ``threads`` work on the texts, by default as many as there are processors. The ids do not depend on it. ``format`` is that of
        ``StreamingDataset``."""
        if isinstance(texts, (str, bytes)):
            raise TypeError("encode_batch takes several texts: pass a list, or use encode for one text")
        if threads is not None and threads < 1:
            raise ValueError(f"threads={threads} encodes nothing; use at least 1")
        format = format or _formats.default_format()
        if format == "arrow":
            raise ValueError('format="arrow": a Ragged has tensors; use "torch", "numpy" or "jax"')
        convert = _formats.converter(format)
        values, offsets = self._native.encode_batch(list(texts), add_special_tokens, parse_special, threads)
        return Ragged(convert(values), convert(offsets), is_bytes=False)

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """The bytes of tokens, one after another, and of special tokens their text. They need not be whole characters."""
        return self._native.decode(list(ids))

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self._file, self._encoding, self._name)

    def __repr__(self) -> str:
        return f"Tokenizer({self._name}, vocab_size {self.vocab_size})"


def _unpickle(file: bytes, encoding: str | None, name: str) -> Tokenizer:
    return Tokenizer(file, encoding=encoding, name=name)
