"""Starts Ray on this machine, reads an epoch with two workers, and trains with two; see `launcher_train.py`."""

import json
import sys
import tempfile
from pathlib import Path

import ray
import ray.train
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

HERE = str(Path(__file__).parent)


def train(how: dict) -> None:
    sys.path.insert(0, HERE)
    from launcher_train import by_ray

    by_ray(how)


def read(how: dict) -> None:
    """What each worker reads in an epoch, without PyTorch."""
    sys.path.insert(0, HERE)
    from helpers import PLAN, ids

    import shardd

    rank = ray.train.get_context().get_world_rank()
    loader = shardd.DataLoader(shardd.StreamingDataset(how["store"], **PLAN), batch_size=8)
    (Path(how["folder"]) / f"rank-{rank}.json").write_text(json.dumps([int(number) for number in ids(loader)]))


if __name__ == "__main__":
    how = json.loads(sys.argv[1])
    # Paths of sockets in it are limited to 107 bytes.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as temporary:
        ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20, _temp_dir=temporary, log_to_driver=False)
        scaling = ray.train.ScalingConfig(num_workers=2)

        def run(name: str) -> ray.train.RunConfig:
            failures = ray.train.FailureConfig(max_failures=1)
            return ray.train.RunConfig(name=name, storage_path=str(Path(how["folder"]) / "ray"), failure_config=failures)

        DataParallelTrainer(read, train_loop_config=how, scaling_config=scaling, run_config=run("read")).fit()
        gloo = TorchConfig(backend="gloo")
        TorchTrainer(train, train_loop_config=how, scaling_config=scaling, run_config=run("train"), torch_config=gloo).fit()
        ray.shutdown()
