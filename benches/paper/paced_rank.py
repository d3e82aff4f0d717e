"""A rank that computes nothing: reads its share with the Python package, and for each step says that it has the data, waits for a
word, and lets the step's time pass.

    paced_rank.py SERVERS RUN RANK WORLD BATCH EPOCHS STEP_MS PARTITIONS Q[,Q...]
"""

import sys
import time

import shardd


def main():
    servers, run, rank, world, batch, epochs, step_ms, partitions, shares = sys.argv[1:]
    dataset = shardd.StreamingDataset(
        servers=servers.split(","),
        run=run,
        rank=int(rank),
        world_size=int(world),
        q=[float(share) for share in shares.split(",")],
        partitions=int(partitions),
        format="numpy",
    )
    seconds = float(step_ms) / 1000
    loader = shardd.DataLoader(dataset, batch_size=int(batch), num_workers=1)
    for epoch in range(int(epochs)):
        for step, _ in enumerate(loader):
            print(epoch, step, flush=True)
            if not sys.stdin.readline():
                return
            time.sleep(seconds)
    print("end", flush=True)


if __name__ == "__main__":
    main()
