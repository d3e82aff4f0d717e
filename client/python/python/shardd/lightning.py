"""For the ``Trainer`` of Lightning.

It accepts a :class:`shardd.DataLoader`, and keeps its state with checkpoints that are made within an epoch. It drops the state
after ``max_steps``, as at the end of an epoch; :class:`LoaderState` keeps it.
"""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:
    from pytorch_lightning import Callback  # type: ignore[no-redef]

from ._loader import DataLoader


class LoaderState(Callback):
    """Keeps the state of ``loader`` with every checkpoint, and resumes there:
    ``Trainer(callbacks=[LoaderState(loader)])``."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader

    def state_dict(self) -> dict[str, Any]:
        return self._loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loader.load_state_dict(state_dict)
