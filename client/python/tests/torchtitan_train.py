"""Trains a small Llama with torchtitan's own Trainer, on CPUs, and writes its losses: for ``torchrun``.

    torchrun --nproc-per-node 4 torchtitan_train.py '{"store": …, "folder": …, "global_batch": 12, "steps": 8, "interval": 4}'

torchtitan is for accelerators. This script answers its questions about their names and memory. Gloo has no scaled sums, so FSDP
divides by itself. Nothing else of torchtitan changes.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch._utils
import torch.distributed
from torch.distributed.fsdp import FSDPModule

torch._utils._get_available_device_type = lambda: "cpu"
torch.cpu.get_device_name = lambda device=None: "cpu"
torch.cpu.get_device_properties = lambda device=None: SimpleNamespace(total_memory=1 << 30)
torch.cpu.current_device = lambda: 0
torch.cpu.memory_stats = lambda device=None: {}
torch.cpu.reset_peak_memory_stats = torch.cpu.empty_cache = lambda: None
if "torch.utils.tensorboard" not in sys.modules:
    # Imported, and not used: it is off.
    sys.modules["torch.utils.tensorboard"] = ModuleType("torch.utils.tensorboard")
    sys.modules["torch.utils.tensorboard"].SummaryWriter = None  # type: ignore[attr-defined]

from shardd.torchtitan import ShardDataLoader
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import model_registry
from torchtitan.models.llama3.config_registry import llama3_debugmodel
from torchtitan.trainer import Trainer

LENGTH = 64


class NoTokenizer(BaseTokenizer):
    """The tokens were made at ingest."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config: Config, **_: Any) -> None:
        super().__init__()

    def encode(self, *_: Any, **__: Any) -> list[int]:
        raise NotImplementedError

    def decode(self, *_: Any, **__: Any) -> str:
        raise NotImplementedError

    def get_vocab_size(self) -> int:
        return 256


def config_of(how: dict[str, Any], world: int) -> Trainer.Config:
    config = llama3_debugmodel()
    config.model_spec = model_registry("debugmodel", attn_backend="flex")
    config.model_spec.model.layers = config.model_spec.model.layers[:1]
    for layer in config.model_spec.model.layers:
        # Flex attention trains on accelerators only.
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    config.tokenizer = NoTokenizer.Config()
    # The line that a user changes.
    config.dataloader = ShardDataLoader.Config(dataset_path=how["store"], q=0.5, partitions=12, infinite=how.get("infinite", True))
    config.dump_folder = how["folder"]
    config.training.seq_len, config.training.steps = LENGTH, how["steps"]
    config.training.global_batch_size = how["global_batch"]
    config.training.local_batch_size = how.get("local_batch", how["global_batch"] // world)
    config.training.disable_cuda_graphs, config.training.mixed_precision_param = True, "float32"
    config.checkpoint.enable, config.checkpoint.interval = True, how["interval"]
    config.validator.enable, config.validator.freq, config.validator.steps = True, how["interval"], -1
    config.validator.dataloader = ShardDataLoader.Config(dataset_path=how["store"], shuffle_seed=1)
    config.debug.seed = 1
    return config


def main() -> None:
    how = json.loads(sys.argv[1])
    trainer = config_of(how, int(os.environ["WORLD_SIZE"])).build()
    for module in trainer.model_parts[0].modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
    losses: dict[int, float] = {}
    trainer.metrics_processor.log = lambda step, loss, *_, **__: losses.__setitem__(step, float(loss))
    validated: dict[int, float] = {}
    trainer.metrics_processor.log_validation = lambda loss, step, *_, **__: validated.__setitem__(step, float(loss))
    read: list[int] = []
    batches = trainer.batch_generator

    def noted(loader: Any) -> Any:
        for inputs, labels in batches(loader):
            read.extend(hash(tuple(row)) for row in inputs["input"].tolist())
            yield inputs, labels

    trainer.batch_generator = noted
    trainer.train()
    every: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(every, read)
    if torch.distributed.get_rank() == 0:
        Path(how["out"]).write_text(json.dumps({"losses": losses, "validated": validated, "read": every}))
    trainer.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
