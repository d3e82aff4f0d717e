"""A rank of a training on nodes: `rank.py RANK WORLD SERVERS RUN PORT SWITCH`. Runs until it is ended.

All ranks take each step together: they meet at PORT. While the file SWITCH is there, the collate function takes 60 ms longer.
"""

import os
import socket
import sys
import time

import shardd
from cluster import text_of

COMPUTE_S = 0.08
SLOW_S = 0.06

rank, world, servers, run, port, switch = sys.argv[1:]


def collate(samples: list[dict]) -> list[int]:
    for sample in samples:
        if sample["text"] != text_of(int(sample["id"])):
            sys.exit(f"sample {sample['id']} has wrong bytes")
    if switch and os.path.exists(switch):
        time.sleep(SLOW_S)
    return [int(sample["id"]) for sample in samples]


dataset = shardd.StreamingDataset(
    servers=servers.split(","), dataset="imagenet-100", run=run, q=0.1, partitions=16, rank=int(rank), world_size=int(world), format="numpy"
)
loader = shardd.DataLoader(dataset, batch_size=12, virtual_ranks=int(world), collate_fn=collate)
with socket.create_connection(("127.0.0.1", int(port))) as meeting:
    while True:
        for _ in loader:
            time.sleep(COMPUTE_S)  # an accelerator computes, and the processor is free
            meeting.sendall(b".")
            if not meeting.recv(1):
                sys.exit("another rank has gone")
