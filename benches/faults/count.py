"""Counts the samples in the weights that a training ends with, from the lines that its ranks wrote. Pure.

Each rank writes a line before it adds its gradient to a step (`begin`, with the samples), and one after its
update (`end`). Lines have the number of the process's start (`start`), so that those of a process that died
differ from those of its successor.
"""

from collections import Counter


def of_restarts(lines, steps, samples):
    """Of a training whose ranks all return to the last checkpoint: the last execution of a step is the one that counts."""
    final, executed = {}, Counter()
    for line in lines:
        if line["event"] == "begin":
            final[line["step"], line["rank"]] = line["ids"]
        elif line["rank"] == 0:
            executed[line["step"]] += 1
    return counted([final[at] for at in final if at[0] < steps], samples) | {"recomputed": sum(executed.values()) - len(executed)}


def of_replicas(lines, steps, samples):
    """Of torchft, whose replicas agree on each step: a step has the samples of the replicas that took part.

    A replica that died after its gradient was added wrote no end. The number of participants, which the others write,
    says whether it was among them."""
    begun, ended, participants, tried = {}, {}, {}, Counter()
    for line in lines:
        at = line["step"], line["rank"]
        if line["event"] == "begin":
            begun[at] = line["ids"]
            tried[at] += 1
        elif line["takes_part"]:
            ended.setdefault(line["step"], set()).add(line["rank"])
            participants[line["step"]] = line["participants"]
    final = []
    for step in range(steps):
        ranks = set(ended.get(step, ()))
        absent = [rank for at, rank in begun if at == step and rank not in ranks]
        ranks.update(absent[: max(participants.get(step, 0) - len(ranks), 0)])
        final += [begun[step, rank] for rank in ranks]
    repeated = sum(1 for step in range(steps) if max((tried[at] for at in tried if at[0] == step), default=0) > 1)
    return counted(final, samples) | {"recomputed": repeated}


def counted(batches, samples):
    times = Counter(sample for batch in batches for sample in batch)
    return {"lost": samples - len(times), "twice": sum(count > 1 for count in times.values())}
