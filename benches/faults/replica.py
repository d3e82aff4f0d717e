"""torchft: a replica of the model, by the loop of torchft's train_ddp.py, on gloo. It is started again when it has died.

Its DistributedDataParallel ends with an assertion when a sum fails (torchft 0.2.0, PyTorch 2.15, CPU), and all replicas
with it, so gradients are averaged by the manager's own `allreduce` here.

A replica that comes back takes the state from another one, and its batches from the present step on. Batches that
replicas would have read while they were away are in no other replica's part.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torchft import DistributedSampler, Manager, Optimizer, ProcessGroupGloo

from setting import RANKS
from training import MICRO, PLACE, STEPS, Log, Pace, data, model


def main():
    torch.set_num_threads(1)
    replica = int(os.environ["BENCH_REPLICA"])
    layers, optimizer_of = model()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    inner = optimizer_of(layers.parameters())

    def load(state):
        layers.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=1,
        # All have the same first weights.
        init_sync=False,
        load_state_dict=load,
        state_dict=lambda: {"model": layers.state_dict(), "optimizer": inner.state_dict()},
        replica_id=f"replica_{replica}",
        timeout=timedelta(seconds=30),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
    )
    optimizer = Optimizer(manager, inner)
    x, y = data()
    order = list(DistributedSampler(range(len(x)), replica_rank=replica, num_replica_groups=RANKS, group_rank=0, num_replicas=1, seed=3))
    all_have_begun(replica)
    log, pace = Log(replica), Pace()
    while manager.current_step() < STEPS:
        optimizer.zero_grad()
        # A replica that heals learns the step of the others here.
        manager.wait_quorum()
        step = manager.current_step()
        ids = order[step * MICRO : (step + 1) * MICRO]
        if not ids:
            break
        log.write("begin", step, ids=ids)
        torch.nn.functional.cross_entropy(layers(x[ids]), y[ids]).backward()
        for parameter in layers.parameters():
            manager.allreduce(parameter.grad).wait()
        takes_part, participants = manager.is_participating(), manager.num_participants()
        optimizer.step()
        pace.wait()
        if manager.current_step() > step:
            log.write("end", step, takes_part=takes_part, participants=participants)
    manager.shutdown(wait=False)
    sys.stdout.flush()
    os._exit(0)


def all_have_begun(replica):
    """Waits until every replica has once been here, so that none misses steps because it starts slowly."""
    Path(PLACE, f"begun-{replica}").touch()
    while len(list(Path(PLACE).glob("begun-*"))) < RANKS:
        time.sleep(0.01)


main()
