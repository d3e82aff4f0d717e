"""For torchtitan: its training configuration with this loader in place of its own.

.. code-block:: python

    from shardd.torchtitan import ShardDataLoader

    config.dataloader = ShardDataLoader.Config(dataset_path="s3://bucket/store", dataset="tokens")

Documents are tokenized and packed once, by ``shardctl ingest --tokenizer … --sequence-length N --packing best_fit``, and not in
each rank. So a sample is a whole row of ``N`` tokens, the same on any number of ranks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any

import torch

try:
    import tyro

    # Releases up to 0.3 have the base class in another place.
    if find_spec("torchtitan.components.dataloader"):
        from torchtitan.components.dataloader import BaseDataLoader
    else:
        from torchtitan.components.data.loader import BaseDataLoader  # type: ignore[no-redef]
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"{missing}; shardd.torchtitan needs torchtitan: pip install torchtitan", name=missing.name) from None

from . import packing
from ._dataset import StreamingDataset
from ._loader import DataLoader
from ._state import StateMismatch
from ._streams import Stream

# The only key of a state. torch.distributed.checkpoint looks up each key of the loader that resumes in the checkpoint. A key that
# names a rank or a setting would be missing after a change of it.
_KEY = "shardd"


class ShardDataLoader(BaseDataLoader):
    """Yields ``({"input": …, "positions": …}, labels)``, each int64 of ``[local_batch_size, seq_len]``; for a trainer that counts
    tokens in place of rows (``num_tokens_per_batch``), of ``[num_tokens_per_batch]``.

    Positions begin at 0 in each document. The label of a document's last token, and of padding, is -100, the ``IGNORE_INDEX`` of
    torchtitan. Rows have ``seq_len`` tokens, or one more, so that the last token also has a label.

    The ranks of a step read consecutive samples of one order, which does not depend on their number. A step of a certain
    ``global_batch_size`` has the same samples on any number of ranks and for any ``local_batch_size``. States are equal on all
    ranks. A checkpoint of any data-parallel degree resumes at any other, at the exact sample.

    With ``infinite``, the samples that do not fill the last batch of an epoch begin the next one: each epoch has every sample
    once. Without it, the loader reads one epoch. All ranks have equally many batches, and rows of padding, without labels, fill the
    last one. An exhausted loader stays so, also after a resume. If the loader ends within the gradient accumulation of a step,
    torchtitan cancels that step, on all ranks.

    Iterating again continues at the same place.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        dataset_path: str | None = None
        """The directory or URL of a store (``s3://bucket/folder``)"""

        dataset: str = ""
        """Dataset in the store: NAME, NAME@TAG or another reference. Leave it out if there is only one"""

        streams: Annotated[tuple[Stream, ...], tyro.conf.Suppress] = ()
        """Several datasets as one, in place of dataset_path: see shardd.Stream"""

        epoch_size: int | None = None
        """Samples of an epoch, of streams that have proportions"""

        infinite: bool = True
        """Whether to begin the next epoch after the last sample"""

        repeat: bool = True
        """The same, as trainers that count tokens name it: an epoch is the last one if either is False"""

        shuffle: bool = True
        """Whether to read in the order of a plan; False reads in stored order"""

        shuffle_seed: int = 0
        """The seed of the order"""

        q: float = 0.1
        """The share of the samples that partitions exchange after each epoch"""

        partitions: int | None = None
        """The parts of the plan"""

        tokens: str = "tokens"
        """The column of the tokens, of shape [seq_len] or [seq_len + 1]"""

        labels: str | None = None
        """A column of labels of the same shape, -100 where a token has no loss; by default the tokens are the labels"""

        local: str | None = None
        """The cache directory for shards of a remote store"""

        cache_limit: str | None = None
        """The size limit of the cache, such as 100GiB"""

        num_workers: int = 2
        """Threads that gather batches"""

        prefetch_factor: int = 4
        """Batches that each thread reads ahead"""

        pin_memory: bool = False
        """Put batches into pinned memory"""

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        seq_len: int | None = None,
        local_batch_size: int | None = None,
        max_context_length: int | None = None,
        num_tokens_per_batch: int | None = None,
        **runtime: Any,
    ) -> None:
        """``dp_rank`` of ``dp_world_size`` are the place along the data-parallel dimension; tensor-, pipeline- and context-parallel
        peers pass the same and read the same. Other arguments of trainers (``tokenizer``, ``snapshot_every_n_steps``) are not used:
        tokens are made at ingest, and a state costs nothing.

        Raises ``ValueError`` if the dataset has no such rows."""
        self._config = config
        self._dataset, self._order = _opened(config, dp_rank, dp_world_size)
        width = _width(self._dataset, config)
        if num_tokens_per_batch is None:
            if seq_len is None or local_batch_size is None:
                raise ValueError("pass seq_len and local_batch_size, or max_context_length and num_tokens_per_batch")
            self._shape: tuple[int, ...] = (local_batch_size, seq_len)
            fits = width in (seq_len, seq_len + 1)
            wanted = f"training.seq_len is {seq_len}"
        else:
            seq_len = width if num_tokens_per_batch % width == 0 else width - 1
            self._shape = (num_tokens_per_batch,)
            fits = 0 < seq_len <= (max_context_length or seq_len) and num_tokens_per_batch % seq_len == 0
            local_batch_size = num_tokens_per_batch // max(seq_len, 1)
            wanted = f"a batch has {num_tokens_per_batch} tokens, with contexts of at most {max_context_length}"
        if not fits:
            raise ValueError(
                f"rows of {self._dataset.name} have {width} tokens, and {wanted}: change that, or ingest with another --sequence-length"
            )
        self._rows, self._seq_len = local_batch_size, seq_len
        self._is_finite = not (config.infinite and config.repeat)
        self._loader = DataLoader(
            self._dataset,
            batch_size=local_batch_size,
            virtual_ranks=dp_world_size,
            num_workers=config.num_workers,
            prefetch_factor=config.prefetch_factor,
            last_batch="short" if self._is_finite else "carry",
        )
        self._batches = self._read()

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        return self._batches

    def state_dict(self) -> dict[str, Any]:
        """The position after the returned batches: equal on all ranks, under a key that names none of them."""
        return {_KEY: json.dumps({**self._loader.state_dict(), "plan": self._order})}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continues at the position in the state, of any data-parallel degree. An empty state changes nothing. A state of another
        loader, or of other data, raises :class:`shardd.StateMismatch`."""
        if not state_dict:
            return
        if _KEY not in state_dict:
            raise StateMismatch(
                f"the checkpoint has the state of another loader ({', '.join(state_dict)}). To begin at the first sample, leave it out: "
                "--checkpoint.exclude_from_loading dataloader"
            )
        state = json.loads(state_dict[_KEY])
        if state.get("plan") == self._order:
            state["plan"] = self._dataset._order
        self._loader.load_state_dict(state)
        self._batches = self._read()

    def close(self) -> None:
        """Ends the threads. Iterating starts others."""
        self._loader.close()

    def _read(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        while not (self._is_finite and self._loader._cursor[0] > 0):
            for batch in self._loader:
                yield self._made(batch)

    def _made(self, batch: Mapping[str, Any]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        made = packing.next_token(batch, tokens=self._config.tokens, labels=self._config.labels)
        if not self._loader.weight:
            # A stand-in, of a sample that another rank has.
            made["labels"].fill_(packing.IGNORED)
        missing = self._rows - len(made["input"])
        fill = {"input": 0, "labels": packing.IGNORED, "positions": torch.arange(self._seq_len)}
        for name, value in fill.items():
            values = made[name][:, : self._seq_len]
            if missing:
                values = torch.cat([values, torch.as_tensor(value).expand(missing, self._seq_len)])
            values = values.reshape(self._shape).contiguous()
            made[name] = values.pin_memory() if self._config.pin_memory and torch.cuda.is_available() else values
        return {"input": made["input"], "positions": made["positions"]}, made["labels"]


def _opened(config: ShardDataLoader.Config, rank: int, world: int) -> tuple[StreamingDataset, str]:
    """The dataset of a rank, and the name of its order in states."""
    if (config.dataset_path is None) == (not config.streams):
        raise ValueError("pass dataset_path, the directory or URL of a store, or streams, one of them")
    # In a process group, the loader compares the orders of all ranks.
    is_grouped = torch.distributed.is_available() and torch.distributed.is_initialized()
    place: dict[str, Any] = {"mesh": (rank, world)} if is_grouped else {"rank": rank, "world_size": world}
    how: dict[str, Any] = dict(
        q=config.q,
        partitions=config.partitions,
        shuffle=config.shuffle,
        shuffle_seed=config.shuffle_seed,
        local=config.local,
        cache_limit=config.cache_limit,
        format="torch",
        **place,
    )
    if config.streams:
        dataset = StreamingDataset(streams=config.streams, epoch_size=config.epoch_size, **how)
        return dataset, dataset._order
    name = config.dataset or None
    dataset = StreamingDataset(config.dataset_path, dataset=name, **how)
    order = dataset._order
    if dataset.partitions % world:
        # A mixture of one stream has the same order, and any number of ranks shares its steps equally.
        dataset = StreamingDataset(streams=[Stream(config.dataset_path, dataset=name)], **how)
    return dataset, order


def _width(dataset: StreamingDataset, config: ShardDataLoader.Config) -> int:
    """The tokens of a row. Leaves out all columns that are not used."""
    used = [config.tokens, *([config.labels] if config.labels is not None else [])]
    for name in used:
        shape = dataset._schema[name]["shape"] if name in dataset._schema else None
        if shape is None or len(shape) != 1:
            found = "there is no such column" if name not in dataset._schema else "it has rows of other shapes"
            raise ValueError(
                f"{dataset.name} has no column {name!r} of as many tokens in each row: {found}, of {', '.join(dataset._schema)}. "
                "Make it with shardctl ingest --tokenizer … --sequence-length N --packing best_fit"
            )
    dataset._columns = [name for name in dataset._schema if name in (*used, "documents", "length")]
    return int(dataset._schema[config.tokens]["shape"][0])
