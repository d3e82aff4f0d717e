#!/usr/bin/env python3
"""The plan of shardd, written a second time: slowly and plainly, from docs/PLAN.md and not from the Rust code.

    pip install blake3
    plan.py order DOCUMENT SHARD_ROWS EPOCH [STRATA]    one line per position: position, shard, row
    plan.py golden > shardfmt/testdata/plan-golden.json
    plan.py mixtures > shardfmt/testdata/mixture-golden.json

DOCUMENT and SHARD_ROWS are JSON, or files of it: a plan document, and the rows of each shard in manifest order. STRATA is
the file with the strata that the document names, if it does.
"""
import json, math, os, sys
from fractions import Fraction
from blake3 import blake3

U64 = (1 << 64) - 1
RANGES, GRAINS, SELECTION, EXCHANGE, SAMPLES, UNITS, BLOCK = range(1, 8)

def make_key(seed, tag, epoch=0, index=0, block=None):
    material = seed.to_bytes(8, "little") + bytes([tag]) + epoch.to_bytes(4, "little") + index.to_bytes(4, "little")
    if block is not None:
        material += block.to_bytes(8, "little")
    return blake3(material, derive_key_context="shardd plan 2026 v1").digest()

def stratum_key(stratum, seed, tag, epoch=0, index=0):
    return make_key(seed, tag, epoch, index, stratum or None)

def stream(key, words):
    data = blake3(b"", key=key).digest(length=8 * words) if words else b""
    return [int.from_bytes(data[i:i + 8], "little") for i in range(0, 8 * words, 8)]

def permutation(key, n):
    """The permutation of 0..n as a list: x goes to permutation[x]."""
    if n <= 256:
        images = list(range(n))
        for last, draw in zip(range(n - 1, 0, -1), stream(key, max(n - 1, 0))):
            other = draw * (last + 1) >> 64
            images[last], images[other] = images[other], images[last]
        return images
    return [image_of(key, n, x) for x in range(n)]

def image_of(key, n, x):
    a = math.isqrt(n - 1) + 1  # the square root, rounded up
    b = -(-n // a)
    keys = stream(key, 12)
    while True:
        row, column = divmod(x, b)
        for i in range(0, 12, 2):
            row = (row + (mix(column, keys[i]) * a >> 64)) % a
            column = (column + (mix(row, keys[i + 1]) * b >> 64)) % b
        x = row * b + column
        if x < n:
            return x

def mix(value, key):
    z = (value ^ key) * 0xBF58476D1CE4E5B9 & U64
    z ^= z >> 32
    return z * 0x94D049BB133111EB & U64

class Plan:
    def __init__(self, document, shard_rows, strata=None):
        """strata: the stratum of each sample."""
        self.d, self.P, self.g, seed = document, document["partitions"], document["grain_rows"], document["seed"]
        self.grains, full, shorts = [], [], []  # a grain: (shard, first row, rows); the others hold numbers of grains
        for shard, rows in enumerate(shard_rows):
            for first in range(0, rows, self.g):
                size = min(self.g, rows - first)
                (full if size == self.g else shorts).append(len(self.grains))
                self.grains.append((shard, first, size))
        strata = strata or [0] * len(full)
        self.S = max(strata) + 1
        dealt = iter(range(len(full)))
        self.cells, self.first, self.initial = [], [], [[] for _ in range(self.P)]
        for stratum in range(self.S):
            members = [grain for grain, of in zip(full, strata) if of == stratum]
            # Slots are dealt like cards, each stratum's where those of the one before end.
            to = [next(dealt) % self.P for _ in members]
            quota = [to.count(m) for m in range(self.P)]
            self.first.append(to[0] if to else 0)
            cells = [[] for _ in range(self.P)]
            if document["placement"] == "shards":
                rest = iter(members)
                for m in permutation(make_key(seed, RANGES), self.P):
                    cells[m] = [next(rest) for _ in range(quota[m])]
            else:
                places = iter(permutation(stratum_key(stratum, seed, GRAINS), len(members)))
                for m in self.in_turn(stratum):
                    cells[m] = [members[next(places)] for _ in range(quota[m])]
            self.cells.append([range(len(held), len(held) + len(cell)) for held, cell in zip(self.initial, cells)])
            for held, cell in zip(self.initial, cells):
                held += cell
        self.quota = [len(held) for held in self.initial]
        home = {grain: m for m in range(self.P) for grain in self.initial[m]}
        self.shorts = [[] for _ in range(self.P)]
        for short in shorts:
            before = max((grain for grain in full if grain < short), default=full[0])
            self.shorts[home[before]].append(short)

    def in_turn(self, stratum):
        """The partitions, the one that is dealt the first slot of the stratum first."""
        return [(self.first[stratum] + i) % self.P for i in range(self.P)]

    def exchanged_before(self, stratum, m, epoch):
        schedule = self.d["schedule"]
        ahead = stratum * 0x9E3779B9 % 2**32
        shares = sum(schedule[min(i, len(schedule) - 1)] for i in range(epoch))
        return len(self.cells[stratum][m]) * shares + ahead >> 32

    def departing(self, stratum, m, epoch):
        """The slots of a partition whose turn it is, turn after turn."""
        cell = self.cells[stratum][m]
        first, end = self.exchanged_before(stratum, m, epoch), self.exchanged_before(stratum, m, epoch + 1)
        if self.d["selection"] == "cyclic":
            turns = permutation(stratum_key(stratum, self.d["seed"], SELECTION, 0, m), len(cell))
            return [cell[turns[turn % len(cell)]] for turn in range(first, end)]
        turns = permutation(stratum_key(stratum, self.d["seed"], SELECTION, epoch, m), len(cell))
        return [cell[turn] for turn in turns[:end - first]]

    def moves(self, epoch):
        """The moves after an epoch, a list per chunk: entry, from partition and slot, to partition and slot."""
        chunks, T = [[] for _ in range(self.d["chunks"])], self.d["chunks"]
        for stratum in range(self.S):
            departing = [(m, self.departing(stratum, m, epoch)) for m in self.in_turn(stratum)]
            ahead = stratum % T
            for t, chunk in enumerate(chunks):
                space = [(m, slot) for m, slots in departing
                         for slot in slots[(len(slots) * t + ahead) // T:(len(slots) * (t + 1) + ahead) // T]]
                goes = permutation(stratum_key(stratum, self.d["seed"], EXCHANGE, epoch, t), len(space))
                before = len(chunk)
                chunk += [[before + entry, *space[entry], *space[goes[entry]]] for entry in range(len(space))]
        return chunks

    def tables(self):
        """The grains in the slots of the partitions, epoch after epoch."""
        table, epoch = self.initial, 0
        while True:
            yield table
            following = [list(slots) for slots in table]
            for _, m, slot, to_m, to_slot in sum(self.moves(epoch), []):
                following[to_m][to_slot] = table[m][slot]
            table, epoch = following, epoch + 1

    def local_order(self, epoch, m, n):
        """The rows of a partition of n, numbered slot by slot and then short grain by short grain, as they are read."""
        seed, order = self.d["seed"], self.d["order"]
        if order == "samples":
            return permutation(make_key(seed, SAMPLES, epoch, m), n)
        units = permutation(make_key(seed, UNITS, epoch, m), -(-n // self.g))
        rows, slots = [], order["blocked"]["slots"]
        for block in range(-(-len(units) // slots)):
            inside = [row for unit in units[block * slots:(block + 1) * slots]
                      for row in range(unit * self.g, min((unit + 1) * self.g, n))]
            rows += [inside[i] for i in permutation(make_key(seed, BLOCK, epoch, m, block), len(inside))]
        return rows

    def order(self, epoch, table):
        """The samples of an epoch by position: shard and row."""
        lists = []
        for m in range(self.P):
            rows = [(shard, first + row) for grain in table[m] + self.shorts[m]
                    for shard, first, size in [self.grains[grain]] for row in range(size)]
            lists.append([rows[i] for i in self.local_order(epoch, m, len(rows))])
        sigma = [reversed_digits(i, self.P) for i in range(self.P)]
        return [lists[m][j] for j in range(max(map(len, lists))) for m in sigma if j < len(lists[m])]

    def owners(self, lengths, start, end, V):
        """The virtual rank that owns each position of a step, given how many samples each partition has."""
        sigma = [reversed_digits(i, self.P) for i in range(self.P)]
        visits = [m for j in range(max(lengths)) for m in sigma if j < lengths[m]]
        return [m * V // self.P for m in visits[start:end]]

def deal(owners, V):
    """The virtual rank that reads each position of a step, given those that own them."""
    n, owned = len(owners), [owners.count(v) for v in range(V)]
    by_turn = sorted(range(V), key=lambda v: owned[v] <= n // V)  # those that own more first; a stable sort
    room = {v: n // V + (turn < n % V) for turn, v in enumerate(by_turn)}
    readers, surplus = [None] * n, []
    for at, owner in enumerate(owners):
        if room[owner] == 0:
            surplus.append(at)
        else:
            readers[at], room[owner] = owner, room[owner] - 1
    for v in range(V):
        for _ in range(room[v]):
            readers[surplus.pop(0)] = v
    return readers

def read_strata(bytes):
    """The stratum of each sample, from the encoding of strata."""
    magic, form, count, samples = bytes[:8], *(int.from_bytes(bytes[a:b], "little") for a, b in [(8, 12), (12, 16), (16, 24)])
    assert magic == b"SHSTRATA" and form == 1
    at = 24
    for _ in range(1 + count):
        at += 4 + int.from_bytes(bytes[at:at + 4], "little")
    width = 1 if count <= 256 else 2
    return [int.from_bytes(bytes[i:i + width], "little") for i in range(at, at + width * samples, width)]

def write_strata(by, names, strata):
    texts = b"".join(len(text.encode()).to_bytes(4, "little") + text.encode() for text in [by, *names])
    width = 1 if len(names) <= 256 else 2
    head = [(1, 4), (len(names), 4), (len(strata), 8)]
    return (b"SHSTRATA" + b"".join(n.to_bytes(size, "little") for n, size in head) + texts
            + b"".join(stratum.to_bytes(width, "little") for stratum in strata))

def reversed_digits(i, n):
    reverse, factor = 0, 2
    while n > 1:
        while n % factor == 0:
            reverse, i, n = reverse * factor + i % factor, i // factor, n // factor
        factor += 1
    return reverse

def compact(value):
    return json.dumps(value, separators=(",", ":"))

def digest(numbers):
    return blake3(b"".join(n.to_bytes(8, "little") for n in numbers)).hexdigest()

def golden():
    version = blake3(b"plan-golden").hexdigest()
    def config(name, rows, epochs, q, P, g, T, selection="cyclic", placement="shards", order="samples", seed=1,
               strata=None):
        # Shares as they parse: to the nearest 2^-32, a half rounded up.
        schedule = [((n << 33) + d) // (2 * d) for n, d in q]
        document = dict(format=1, version=version, seed=seed, schedule=schedule, partitions=P, grain_rows=g, chunks=T,
                        selection=selection, placement=placement, order=order)
        if strata:
            count, of_sample = strata
            of_sample = [of_sample(sample) for sample in range(sum(rows))]
            strata = write_strata("golden", ["stratum %d" % stratum for stratum in range(count)], of_sample)
            document["strata"] = blake3(strata).hexdigest()
        return name, document, rows, epochs, strata
    none, hundredth, tenth, third, all_ = (0, 1), (1, 100), (1, 10), (3, 10), (1, 1)
    blocked = lambda slots: {"blocked": {"slots": slots}}
    configs = [
        config("nothing moves", [10, 7, 20], [0, 5], [none], 4, 2, 1),
        config("a hundredth moves", [300, 299, 150], [0, 1, 12], [hundredth], 6, 2, 1),
        config("a tenth moves in chunks", [200, 123, 77], [0, 1, 7, 12], [tenth], 5, 4, 16),
        config("everything moves at once", [50, 50, 21], [0, 1, 2], [all_], 7, 1, 1, seed=2**64 - 1),
        config("one full exchange, then little", [64, 63, 62, 61], [0, 1, 2, 12], [all_, hundredth], 12, 4, 3),
        config("independent selection", [150, 33], [0, 1, 6], [third], 8, 2, 4, selection="independent"),
        config("independent and random", [90, 0, 41], [0, 3], [tenth, none, third], 3, 4, 2,
               selection="independent", placement="random"),
        config("random placement", [40, 31, 3, 2, 55], [0, 1, 11], [third], 9, 4, 2, placement="random"),
        config("blocked order", [101, 58, 3, 77], [0, 1, 4], [tenth], 6, 8, 1, order=blocked(3)),
        config("blocked, one block, random", [70, 9], [0, 2], [all_], 2, 4, 16, placement="random", order=blocked(99)),
        config("short grains before any full one", [3, 2, 17, 5, 8], [0, 1, 2], [all_], 3, 4, 1),
        config("a single partition", [29], [0, 3], [tenth], 1, 2, 1),
        config("ninety-six partitions", [700, 411, 389], [0, 2], [tenth], 96, 2, 1, seed=7),
        config("large permutations", [2000, 1777, 1500], [0, 1, 12], [tenth], 3, 2, 16),
        config("large and independent", [3000, 1001], [0, 2], [third], 2, 1, 1, selection="independent", seed=3),
        config("strata", [50, 60, 40], [0, 1, 7], [tenth], 4, 1, 4, strata=(3, lambda sample: sample * sample % 3)),
        config("strata of all sizes, random", [77, 0, 120], [0, 1, 3], [third, all_], 6, 1, 3, placement="random",
               strata=(5, lambda sample: [4, 0, 1, 1, 3, 3, 3, 3][sample * 7 // 3 % 8])),
        config("strata, independent and blocked", [64, 63], [0, 2], [third], 5, 1, 2, selection="independent",
               order=blocked(4), strata=(4, lambda sample: sample // 40), seed=9),
        config("a stratum for every two samples", [300, 301], [0, 1, 12], [tenth], 3, 1, 16,
               strata=(301, lambda sample: sample // 2)),
        config("large strata", [2500, 2500], [0, 1, 12], [tenth], 4, 1, 5, strata=(2, lambda sample: sample % 3 // 2)),
    ]
    sizes = [0, 1, 2, 3, 7, 100, 255, 256, 257, 289, 300, 1000, 4097]
    permutations = []
    for i, n in enumerate(sizes):
        key = make_key(i, EXCHANGE, i, i)
        images = permutation(key, n)
        permutations.append({"seed": i, "tag": EXCHANGE, "epoch": i, "index": i, "key": key.hex(), "n": n,
                             "first": images[:8], "digest": digest(images)})
    for n in [2**32 + 1, 10**12, 2**61 - 1]:
        key = make_key(n, GRAINS)
        permutations.append({"seed": n, "tag": GRAINS, "epoch": 0, "index": 0, "key": key.hex(), "n": n,
                             "first": [image_of(key, n, x) for x in range(8)], "digest": ""})
    plans = []
    for name, document, rows, epochs, strata in configs:
        plan, states = Plan(document, rows, strata and read_strata(strata)), []
        for epoch, table in zip(range(max(epochs) + 1), plan.tables()):
            if epoch not in epochs:
                continue
            starts = [sum(rows[:shard]) for shard in range(len(rows))]
            order = [starts[shard] + row for shard, row in plan.order(epoch, table)]
            moves, full = plan.moves(epoch), sum(rows) <= 200
            slots = sum(table, [])
            states.append({"epoch": epoch, "slots": slots if full else slots[:12], "slots_digest": digest(slots),
                           "moves": [len(chunk) for chunk in moves], "first_moves": sum(moves, [])[:4],
                           "moves_digest": digest(n for chunk in moves for move in chunk for n in move),
                           "order": order if full else order[:12], "order_digest": digest(order)})
        # Of steps of a third of a round, of two and a bit rounds, and the last ones: who reads each position.
        lengths = [plan.g * len(slots) + sum(plan.grains[short][2] for short in shorts)
                   for slots, shorts in zip(plan.initial, plan.shorts)]
        shares = []
        for V in [v for v in range(1, plan.P + 1) if plan.P % v == 0]:
            for batch in sorted({-(-plan.P // 3), 2 * plan.P + 1, 64}):
                readers = [v for start in range(0, sum(rows), batch)
                           for v in deal(plan.owners(lengths, start, start + batch, V), V)]
                shares.append({"virtual_ranks": V, "batch": batch, "last": readers[-12:], "digest": digest(readers)})
        plans.append({"name": name, "document": document, "id": blake3(compact(document).encode()).hexdigest(),
                      "shard_rows": rows, **({"strata": strata.hex()} if strata else {}), "quotas": plan.quota, "shorts": plan.shorts, "epochs": states, "shares": shares})
    lines = lambda values: ",\n".join(map(compact, values))
    print('{"permutations":[\n%s\n],"plans":[\n%s\n]}' % (lines(permutations), lines(plans)))

class Turns:
    """Turns dealt by weights that never change."""
    def __init__(self, weights):
        self.weights = [weight // math.gcd(*weights) for weight in weights]
        # A tree is a source's number or a pair of trees, the heavier first, the earlier of equals.
        forest = [(weight, made, made) for made, weight in enumerate(self.weights)]
        while len(forest) > 1:
            a, b, *forest = sorted(forest)
            pair = (a, b) if a[0] == b[0] else (b, a)
            forest.append((a[0] + b[0], 2 * len(self.weights) - len(forest), pair))
        self.tree = forest[0]

    def before(self, n, tree=None, counts=None):
        """How many of the first n turns are each source's."""
        tree, counts = tree or self.tree, counts if counts is not None else [0] * len(self.weights)
        weight, _, what = tree
        if isinstance(what, int):
            counts[what] = n
        else:
            heavy = math.floor(Fraction(n * what[0][0], weight) + Fraction(1, 2))
            self.before(heavy, what[0], counts)
            self.before(n - heavy, what[1], counts)
        return counts

class Mixture:
    def __init__(self, document):
        counts = {"proportion": lambda take, n: Fraction(take), "choose": lambda take, n: Fraction(take),
                  "repeat": lambda take, n: Fraction(math.floor(Fraction(take) * n))}
        shares = [counts[kind](take, source["samples"])
                  for source in document["sources"] for kind, take in source["take"].items()]
        # Each phase: its first position, its sources, and their turns.
        self.phases = []
        phases = [(0, shares)] + [(phase["from"], list(map(Fraction, phase["proportions"])))
                                  for phase in document.get("phases", [])]
        for start, shares in phases:
            whole = math.lcm(*(share.denominator for share in shares))
            read = [source for source, share in enumerate(shares) if share]
            self.phases.append((start, read, Turns([int(shares[source] * whole) for source in read])))
        self.count = len(document["sources"])
        self.weights = [0] * self.count
        for source, weight in zip(self.phases[0][1], self.phases[0][2].weights):
            self.weights[source] = weight

    def before(self, n):
        """How many of the first n positions are each source's."""
        counts = [0] * self.count
        for (start, read, turns), end in zip(self.phases, [start for start, *_ in self.phases[1:]] + [n]):
            for source, count in zip(read, turns.before(max(0, min(end, n) - start))):
                counts[source] += count
        return counts

    def at(self, n):
        """The source of position n, and how many of its samples were read before."""
        before, after = self.before(n), self.before(n + 1)
        [source] = [source for source in range(len(before)) if after[source] > before[source]]
        return [source, before[source]]

def golden_mixtures():
    plans = [blake3(b"mixture-golden %d" % i).hexdigest() for i in range(9)]
    def config(name, kind, takes, epoch_size=None, phases=()):
        sources = []
        for i, (samples, take) in enumerate(takes):
            kind_of = kind if kind != "absolute" else "choose" if isinstance(take, int) else "repeat"
            sources.append(dict(plan=plans[i], samples=samples, take={kind_of: take}))
        phases = [{"from": start, "proportions": proportions} for start, proportions in phases]
        mixture = Mixture(dict(sources=sources, phases=phases))
        epoch_size = epoch_size or sum(samples for samples, _ in takes)
        if kind == "absolute":
            epoch_size = sum(take if isinstance(take, int) else math.floor(Fraction(take) * n) for n, take in takes)
        document = dict(format=2 if phases else 1, sources=sources, epoch_size=epoch_size)
        return name, document | ({"phases": phases} if phases else {}), mixture
    configs = [
        config("one source", "proportion", [(10, "1")]),
        config("two halves", "proportion", [(10, "0.5"), (30, "0.5")]),
        config("seven to two to one", "proportion", [(1000, "0.7"), (500, "0.2"), (77, "0.1")], 100),
        config("web, code, books and more", "proportion",
               [(50000, "67"), (30000, "15"), (4000, "4.5"), (300, "4.5"), (200, "4.5"), (100, "2.5"), (9, "2")]),
        config("equals", "proportion", [(5, "1")] * 9, 1000),
        config("no common measure", "proportion", [(5, "3.141592653"), (6, "2.718281828"), (7, "1.414213562")], 333),
        config("chosen and repeated", "absolute", [(50, 7), (60, "1.5"), (1000, "0.25"), (3, "12")]),
        config("large and small", "absolute", [(1281167, "1"), (50000, "1"), (10**9, 10**9 + 7), (12, "0.75")]),
        config("a trillion", "absolute", [(2**39, "1"), (2**38, 2**38 - 1), (3, "2")]),
        config("easy first", "proportion", [(1000, "0.9"), (500, "0.1"), (77, "0")], 400,
               [(250, ["0.5", "0.5", "0"]), (700, ["0", "0.6", "0.4"]), (10**6, ["0.1", "0", "0.9"])]),
        config("annealed", "proportion", [(3000, "1"), (200, "0.25")], 512,
               [(40 * i, [f"{1 - i / 32:.5f}".rstrip("0").rstrip("."), f"{0.25 + i / 32:.5f}".rstrip("0").rstrip(".")]) for i in range(1, 25)]),
    ]
    lines = []
    for name, document, mixture in configs:
        sources = [mixture.at(n) for n in range(1000)]
        size = document["epoch_size"]
        far = [size - 1, size, 3 * size + size // 7, 10**6, 10**9 + 1, 2**40 + 12345, 10**15 + 3]
        lines.append(compact({"name": name, "document": document, "id": blake3(compact(document).encode()).hexdigest(),
                              "weights": mixture.weights, "first": sources[:20],
                              "far": [[n, *mixture.at(n)] for n in far],
                              "before": [mixture.before(epoch * size) for epoch in [1, 2, 7]],
                              "digest": digest(source for source, _ in sources)}))
    print("[\n%s\n]" % ",\n".join(lines))

def from_json(text):
    return json.load(open(text)) if os.path.exists(text) else json.loads(text)

if __name__ == "__main__":
    match sys.argv[1:]:
        case ["golden"]:
            golden()
        case ["mixtures"]:
            golden_mixtures()
        case ["order", document, shard_rows, epoch, *strata]:
            strata = read_strata(open(strata[0], "rb").read()) if strata else None
            plan, epoch = Plan(from_json(document), from_json(shard_rows), strata), int(epoch)
            table = next(table for e, table in enumerate(plan.tables()) if e == epoch)
            for position, (shard, row) in enumerate(plan.order(epoch, table)):
                print(position, shard, row)
        case _:
            sys.exit(__doc__)
