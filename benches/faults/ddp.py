"""Checkpoint and restart: DistributedDataParallel on gloo. torchrun starts it, and starts all ranks again when one has died.

A checkpoint has the model, the optimizer and the step; the order of samples is a function of the seed, and a rank
that resumes skips the batches before the step.
"""

import os

import torch
import torch.distributed as dist

from setting import RANKS
from training import MICRO, PLACE, STEPS, Log, Pace, data, model

EVERY = int(os.environ["BENCH_CHECKPOINT_EVERY"])


def main():
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    # PyTorch 2.15 leaves the addresses of the ranks that died in the launcher's store: restarts without a prefix failed.
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    store = dist.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    layers, optimizer_of = model()
    net = torch.nn.parallel.DistributedDataParallel(layers)
    optimizer = optimizer_of(layers.parameters())
    path, first = f"{PLACE}/checkpoint.pt", 0
    if os.path.exists(path):
        saved = torch.load(path)
        layers.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    x, y = data()
    sampler = torch.utils.data.DistributedSampler(range(len(x)), num_replicas=RANKS, rank=rank, seed=3)
    order = list(sampler)
    log, pace = Log(rank), Pace()
    for step in range(first, STEPS):
        ids = order[step * MICRO : (step + 1) * MICRO]
        log.write("begin", step, ids=ids)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x[ids]), y[ids]).backward()
        optimizer.step()
        pace.wait()
        log.write("end", step)
        if (step + 1) % EVERY == 0 and rank == 0:
            torch.save({"model": layers.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, f"{path}.new")
            os.replace(f"{path}.new", path)
    dist.destroy_process_group()


main()
