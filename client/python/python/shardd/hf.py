"""For the ``Trainer`` of Hugging Face ``transformers``.

.. code-block:: python

    class Trainer(shardd.hf.ShardTrainerMixin, transformers.Trainer):
        pass
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from ._dataset import StreamingDataset
from ._loader import DataLoader
from ._state import StateMismatch


class ShardTrainerMixin:
    """Lets a ``Trainer`` whose ``train_dataset`` is a :class:`shardd.StreamingDataset` read it through :class:`shardd.DataLoader`,
    past Accelerate, and continue exactly where a checkpoint was made, with any number of processes.

    ``per_device_train_batch_size`` is the batch size, ``dataloader_num_workers`` counts threads, and ``dataloader_drop_last`` and
    ``data_collator`` keep their meanings, the latter if it is given.
    """

    def __init__(self, *args: Any, data_collator: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, data_collator=data_collator, **kwargs)
        self._collate_fn = data_collator
        # The loader resumes by itself; the Trainer would read the used samples again, and discard them.
        self.args.ignore_data_skip = True
        self.add_callback(LoaderState())

    def get_train_dataloader(self) -> DataLoader:
        """The loader, at the beginning; a checkpoint's state is loaded before it is iterated."""
        if not isinstance(self.train_dataset, StreamingDataset):
            raise TypeError(f"train_dataset is a {type(self.train_dataset).__name__}; pass a shardd.StreamingDataset to this Trainer")
        return _Loader(
            self.train_dataset,
            batch_size=self.args.per_device_train_batch_size,
            num_workers=self.args.dataloader_num_workers or 2,
            drop_last=self.args.dataloader_drop_last,
            collate_fn=self._collate_fn,
        )


class LoaderState(TrainerCallback, ExportableState):
    """Keeps the loader's state in ``trainer_state.json`` of a checkpoint."""

    def __init__(self) -> None:
        self.data: dict[str, Any] | None = None
        self._loader: DataLoader | None = None

    def state(self) -> dict[str, Any]:
        data = self._loader.state_dict() if self._loader is not None else self.data
        return {"args": {}, "attributes": {"data": data}}

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any) -> None:
        self._loader = train_dataloader
        if state.global_step == 0:
            return
        saved = (state.stateful_callbacks or {}).get(type(self).__name__, {}).get("attributes", {}).get("data")
        if saved is None:
            raise StateMismatch(
                f"the checkpoint of step {state.global_step} has no state of a shardd loader; it was made without "
                "shardd.hf.ShardTrainerMixin, and its position is not known"
            )
        train_dataloader.load_state_dict(saved)


class _Loader(DataLoader):
    def set_epoch(self, epoch: int) -> None:
        """Does nothing: the Trainer computes the epoch from its steps, whose number changes with the world size, and the loader
        has the exact one in its state."""
