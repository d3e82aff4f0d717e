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
    begun, ended, participants, again = {}, {}, {}, set()
    furthest, undone = -1, 0
    for line in lines:
        step, at = line["step"], (line["step"], line["rank"])
        if line["event"] == "begin":
            if at in begun and step > furthest:
                again.add(step)
            begun[at] = line["ids"]
        elif line["takes_part"]:
            if step < furthest:
                # No replica was left, and they began from the first weights.
                undone += furthest - step + 1
                for number in range(step, furthest + 1):
                    ended.pop(number, None)
                for key in [key for key in begun if key[0] > step]:
                    del begun[key]
            furthest = step
            ended.setdefault(step, set()).add(line["rank"])
            participants[step] = line["participants"]
    final = []
    for step in range(steps):
        ranks = set(ended.get(step, ()))
        absent = [rank for at, rank in begun if at == step and rank not in ranks]
        ranks.update(absent[: max(participants.get(step, 0) - len(ranks), 0)])
        final += [begun[step, rank] for rank in ranks]
    return counted(final, samples) | {"recomputed": len(again) + undone}


def counted(batches, samples):
    times = Counter(sample for batch in batches for sample in batch)
    return {"lost": samples - len(times), "twice": sum(count > 1 for count in times.values())}
