"""Compares shardd-views with DuckDB (meaning of predicates), pyarrow and DuckDB (speed of a filter) and datasketch (near-duplicates).

pip install duckdb pyarrow datasketch numpy
cargo build --release -p shardd-views --examples
python tests/reference/views.py [meaning] [speed] [duplicates]      # all three without arguments
"""

import datetime
import decimal
import os
import random
import subprocess
import sys
import tempfile
import time

import numpy
import pyarrow
import pyarrow.compute

HERE = os.path.dirname(os.path.abspath(__file__))
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(HERE, "..", "target"))
EXAMPLES = os.path.join(TARGET, "release", "examples")
ROWS = 400

# Predicates that both must answer alike, row by row. DuckDB's spelling follows after " ## " where it differs.
PREDICATES = """
i > 3
i >= 3
i = 3
i == 3
i <> 3
i != 3
i < -3
i <= 2.5
i > 2.5
i = 2.5
i <> 2.5
3 < i
2.5 >= i
i = 1e0
i > 1e2
i IN (1, 2, 3)
i IN (1, 2, 3, 4, 5, 6)
i NOT IN (1, 2, 3, 4, 5, 6)
i IN (1, NULL)
i NOT IN (1, NULL)
i IN (NULL)
i IN (j, 3)
i IN (1, 2.5, 3.0, 4)
i BETWEEN -2 AND 4
i NOT BETWEEN -2 AND 4
i BETWEEN j AND 10
i BETWEEN NULL AND 3
i NOT BETWEEN NULL AND 3
i BETWEEN 4 AND -2
3 BETWEEN i AND j
i IS NULL
i IS NOT NULL
NOT i IS NULL
i = NULL
NULL = NULL
NULL IS NULL
i + j > 5
i - j < 0
i * j >= 10
i / j > 0.5
i / 2 = 1.5
i // j = 1
i // 3 = -1
i % 3 = 1
i % 3 = -1
i % j = 0
-i > 2
- - i > 2
-(i + j) = 3
+i = 3
i + 1 = j - 1
i * 2 + j * 3 = 12
i - (j - 2) = 1
(i + j) * 2 <= 6
i - j - 2 = 0
abs(i) = 3
abs(i - j) < 2
i > j
i = j
i <> j
i > 0 AND j > 0
i > 0 OR j > 0
i > 0 AND j > 0 OR s = 'abc'
i > 0 AND (j > 0 OR s = 'abc')
NOT (i > 0 AND j > 0)
NOT i > 0 AND j > 0
NOT NOT i > 0
i > 0 AND NULL
i > 0 OR NULL
NULL AND FALSE
(i > 0) = (j > 0)
(i > 0) <> b
(i > 0) IS NULL
(i IS NULL) = (j IS NULL)
b
NOT b
b = TRUE
b <> FALSE
b AND i > 0
b OR b IS NULL
b IN (TRUE, NULL)
b > FALSE
small > 1000
small < 1000
small >= -129
small = 127
small = -128
small * 2 > 100
small IN (1, 300, -5, 7, 1000)
small BETWEEN -1000 AND 1000
small + i > 0
u > -1
u = 18446744073709551615
u > 9223372036854775807
u >= 1.5
u < i
u = i
u % 10 = 3
u IN (3, 18446744073709551615, 7, 9, 11)
u BETWEEN 1 AND 9223372036854775808
f > 0.5
f = 0
f <> 0
f < 0
f >= 1e300
f = f
f > j
f <= i
f + 1 > 2.5
f * 2 = 1
f / 2 < 0.25
f - f = 0
f % 2 = 0.5
f / i > 0.1
f / 0 IS NULL
i / 0 IS NULL
i % 0 IS NULL
i // 0 IS NULL
abs(f) = 0.5
f IN (0.5, 2.5)
f IN (0, 0.5, 2.5, 1e300, 7)
f NOT IN (0.5, NULL)
f BETWEEN -1 AND 1
f IS NULL
-f > 0
g = 0.1
g > 0.1
g <= 0.1
g = 0.5
g = 1e-1
g > f
g < i
g + 1 > 1.5
g * 0.1 > 0.04
g BETWEEN 0.1 AND 0.5
n = 1.5
n = 1.50
n > 1.499
n < 1.501
n = 1.505
n <= -0.01
n + 0.5 > 2
n - n = 0
n * 2 = 3
n * 1.5 > 2.2
n * n > 4.84
n / 2 > 0.7
n % 0.4 = 0.3
n % 1 = 0.5
n > i
n = i
n < f
n IN (1.5, 2.25)
n IN (1.5, 2.25, 3, 4.75, -1.25)
n NOT IN (1.5, 2.25, 3, 4.75, -1.25)
n BETWEEN 0 AND 1.75
abs(n) > 4.5
-n = 1.5
n = 1e0
s = 'abc'
s <> 'abc'
s < 'b'
s >= 'ä'
s > 'Z'
s = ''
s IN ('abc', 'x')
s IN ('abc', 'x', 'ABC', 'Straße', '', 'a_c')
s NOT IN ('abc', 'x', NULL)
s BETWEEN 'a' AND 'c'
s LIKE 'abc'
s LIKE 'a%'
s LIKE '%c'
s LIKE '%b%'
s LIKE 'a_c'
s LIKE '___'
s LIKE '%'
s LIKE ''
s LIKE 'a\\%'
s LIKE '%\\%'
s LIKE 'a!_c' ESCAPE '!'
s LIKE '%!%%' ESCAPE '!'
s LIKE 'a%b%c'
s LIKE 'Stra_e'
s LIKE '%''%'
s NOT LIKE 'a%'
s NOT LIKE '%b%'
s LIKE NULL
s ILIKE 'ABC'
s ILIKE 'a%'
s ILIKE '%STRASSE%'
s ILIKE 'straßE'
s ILIKE 'ÄRGER'
s ILIKE '_B_'
s NOT ILIKE 'a%'
length(s) = 3
length(s) > 4
length(s) = 0
length(lower(s)) = length(s)
lower(s) = 'abc'
upper(s) = 'ABC'
upper(s) = 'ÄRGER'
lower(s) LIKE 'a%'
lower(s) = s
upper(s) <> s
starts_with(s, 'a')
ends_with(s, 'c')
contains(s, 'b')
contains(s, '')
contains(s, '%')
contains(s, t)
starts_with(s, t)
ends_with(s, t)
starts_with(s, NULL)
s = t
s < t
s LIKE 'a%' = (t = 'abc') ## (s LIKE 'a%') = (t = 'abc')
coalesce(s, t) = 'abc'
coalesce(s, 'none') = 'none'
coalesce(i, 0) = 0
coalesce(i, j, -1) > 0
coalesce(i, 2.5) = 2.5
coalesce(f, i) > 1
coalesce(n, 0) < 1
coalesce(b, FALSE)
coalesce(NULL, i) = 3
coalesce(i, j) IS NULL
dict = 'red'
dict <> 'red'
dict IN ('red', 'green')
dict IN ('red', 'green', 'blue', 'x', 'y')
dict LIKE 'r%'
length(dict) > 3
upper(dict) = 'RED'
dict = s
dict < 'green'
dict IS NULL
view = 'abc'
view LIKE '%long%'
view > 'b'
view = s
length(view) > 12
view IN ('abc', 'x', 'y', 'z', 'a rather long string')
day = '2024-01-01'
day > '2024-01-01'
day <> '2024-01-01'
day BETWEEN '2023-12-31' AND '2024-01-02'
day IN ('2024-01-01', '2024-01-02')
day NOT IN ('2024-01-01', '2024-01-02', '2024-01-03', '2024-01-04')
'2024-01-01' <= day
day = time
day < time
day IS NULL
coalesce(day, '2024-01-01') = '2024-01-01'
time = '2024-01-01'
time > '2024-01-01 12:00:00'
time >= '2024-01-01T00:00:00'
time < '2024-01-01 00:00:00.000001'
time BETWEEN '2024-01-01' AND '2024-01-02'
nano > '2024-01-01 00:00:00.000000001' ## nano > TIMESTAMP_NS '2024-01-01 00:00:00.000000001'
zone > '2024-01-01 00:00:00+00:00'
zone = '2024-01-01 01:00:00+01:00'
zone < '2024-01-01'
zone = time
length(list) = 2
length(list) > 0
length(list) IS NULL
list IS NULL
length(bin) = 2 ## octet_length(bin) = 2
bin IS NOT NULL
st.x > 3
st.x IS NULL
st."y z" = 'abc'
st.x + i > 5
st IS NULL
"odd name" > 3
"odd name" = i
"SELECT" = 3
1 = 1
1 > 2
'a' < 'b'
1 + 1 = 2
7 / 2 = 3.5
-7 // 2 = -3
-7 % 3 = -1
-7.5 % 2 = -1.5
0.1 + 0.2 = 0.3
1e-1 + 2e-1 = 3e-1
TRUE
FALSE OR TRUE
NULL OR TRUE
i > 0 AND i < 5 AND j > -5 AND j < 5 AND s IS NOT NULL
i = 1 OR i = 2 OR i = 3 OR j = 1 OR j = 2
((i > 0))
NOT (NOT (b))
i * 1000000 * 1000000 > 1 ## i::BIGINT * 1000000 * 1000000 > 1
length(s) * 2 > i + 3
length(s) + length(t) = 6
abs(n - f) < 0.5
"""


def predicates():
    """Pairs of the crate's text and DuckDB's."""
    for line in PREDICATES.strip().split("\n"):
        ours, _, theirs = line.partition(" ## ")
        yield ours, theirs or ours


def table(seed):
    """Random columns, a sixth of them NULL."""
    draw = random.Random(seed)

    def column(data_type, values):
        return pyarrow.array([None if draw.random() < 1 / 6 else draw.choice(values) for _ in range(ROWS)], data_type)

    texts = ["abc", "ABC", "", "a_c", "axc", "ab", "b", "Straße", "STRASSE", "ärger", "ÄRGER", "x'y", "a%", "a\\b", "c", "aXbYc", "a\\%"]
    first = datetime.datetime(2023, 12, 30)
    days = [first + datetime.timedelta(days=n) for n in range(6)]
    times = days + [day + datetime.timedelta(hours=h, microseconds=m) for day in days for h, m in ((12, 0), (0, 1), (1, 0))]
    numbers = list(range(-8, 9))
    floats = [0.0, -0.0, 0.5, -0.5, 2.5, 1e300, -1e300, float("nan"), float("inf"), float("-inf"), 1.0, 2.0, 3.0, 0.1]
    decimals = [decimal.Decimal(n) / 4 for n in range(-20, 21)] + [decimal.Decimal("1.51")]
    utc = datetime.timezone.utc
    return pyarrow.table({
        "i": column(pyarrow.int64(), numbers),
        "j": column(pyarrow.int32(), numbers),
        "small": column(pyarrow.int8(), numbers + [127, -128, 100]).cast(pyarrow.int8()),
        "u": column(pyarrow.uint64(), [0, 1, 3, 7, 13, 2**63, 2**64 - 1]),
        "f": column(pyarrow.float64(), floats),
        "g": column(pyarrow.float32(), [0.1, 0.5, 0.25, -1.5, 3.0, float("nan"), 0.0]),
        "n": column(pyarrow.decimal128(9, 2), decimals),
        "s": column(pyarrow.utf8(), texts),
        "t": column(pyarrow.large_utf8(), texts),
        "b": column(pyarrow.bool_(), [True, False]),
        "dict": column(pyarrow.utf8(), ["red", "green", "blue", "abc"]).dictionary_encode(),
        "view": column(pyarrow.string_view(), texts + ["a rather long string", "a rather long string too"]),
        "day": column(pyarrow.date32(), [day.date() for day in days]),
        "time": column(pyarrow.timestamp("us"), times),
        "nano": column(pyarrow.timestamp("ns"), times),
        "zone": column(pyarrow.timestamp("us", "UTC"), [time.replace(tzinfo=utc) for time in times]),
        "list": column(pyarrow.list_(pyarrow.int32()), [[], [1], [1, 2], [1, None, 3]]),
        "bin": column(pyarrow.binary(), [b"", b"a", b"ab", b"\xff\x00"]),
        "st": column(pyarrow.struct({"x": pyarrow.int32(), "y z": pyarrow.utf8()}), [{"x": 1, "y z": "abc"}, {"x": 5, "y z": None}, {"x": None, "y z": "b"}]),
        "odd name": column(pyarrow.int16(), numbers),
        "SELECT": column(pyarrow.uint8(), [1, 2, 3, 255]),
    })


def write(path, data, rows_a_batch):
    with pyarrow.ipc.new_file(path, data.schema) as writer:
        writer.write_table(data, max_chunksize=rows_a_batch)


def run(example, *arguments):
    command = [os.path.join(EXAMPLES, example), *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True)


def database():
    import duckdb

    connection = duckdb.connect()
    connection.execute("SET threads = 1; SET TimeZone = 'UTC'")
    # As DuckDB did before its version 2, and as this crate does: a division by zero is NULL.
    for setting in ("ieee_floating_point_ops = false", "error_on_division_by_zero = false"):
        try:
            connection.execute(f"SET {setting}")
        except duckdb.Error:
            pass
    return connection


def meaning(folder):
    pairs = list(predicates())
    listing = os.path.join(folder, "predicates.txt")
    with open(listing, "w", encoding="utf-8") as file:
        file.writelines(ours + "\n" for ours, _ in pairs)
    agree = rows = 0
    tables = 5
    failed = {}
    for seed in range(tables):
        data = table(seed)
        path = os.path.join(folder, "table.arrow")
        write(path, data, 97)
        found = run("evaluate", path, listing).stdout.rstrip("\n").split("\n")
        connection = database()
        connection.register("data", data)
        for (ours, theirs), line in zip(pairs, found, strict=True):
            try:
                answers = connection.execute(f"SELECT ({theirs}) FROM data").fetchall()
                expected = "ok " + "".join({True: "t", False: "f", None: "n"}[answer] for (answer,) in answers)
            except Exception as error:
                expected = f"error {str(error).splitlines()[0]}"
            same = line == expected
            agree += same
            rows += ROWS * same
            if not same:
                failed.setdefault(ours, (line[:90], expected[:90]))
    print(f"meaning: {agree} of {tables * len(pairs)} evaluations agree with DuckDB ({len(pairs)} predicates, {tables} tables, {rows} rows)")
    for text, (ours, theirs) in failed.items():
        print(f"  {text}\n    ours   {ours}\n    DuckDB {theirs}")
    letters(database(), folder)


def letters(connection, folder):
    """lower and upper of each character."""
    characters = [chr(code) for code in range(1, 0x110000) if not 0xD800 <= code < 0xE000]
    data = pyarrow.table({"c": characters})
    connection.register("letters", data)
    for name in ("lower", "upper"):
        theirs = [row[0] for row in connection.execute(f"SELECT {name}(c) FROM letters").fetchall()]
        both = pyarrow.table({"c": characters, "r": theirs})
        path = os.path.join(folder, "letters.arrow")
        write(path, both, 1 << 16)
        listing = os.path.join(folder, "letters.txt")
        with open(listing, "w", encoding="utf-8") as file:
            file.write(f"{name}(c) = r\n")
        answers = run("evaluate", path, listing).stdout.strip()[3:]
        differ = [c for c, answer in zip(characters, answers, strict=True) if answer != "t"]
        shown = " ".join(f"U+{ord(c):04X}" for c in differ[:8])
        print(f"{name}: {len(characters) - len(differ)} of {len(characters)} characters agree with DuckDB; first others: {shown}")


SPEED = [
    ("a > 500000", lambda t, c: c.greater(t["a"], 500000)),
    ("a > 250000 AND b < 750000", lambda t, c: c.and_kleene(c.greater(t["a"], 250000), c.less(t["b"], 750000))),
    ("a * 2 + b > 1000000", lambda t, c: c.greater(c.add_checked(c.multiply_checked(t["a"], 2), t["b"]), 1000000)),
    ("s = 'word42'", lambda t, c: c.equal(t["s"], "word42")),
    ("s LIKE 'word4%'", lambda t, c: c.starts_with(t["s"], "word4")),
    ("s LIKE '%7%'", lambda t, c: c.match_substring(t["s"], "7")),
    ("s IN ('word1', 'word22', 'word333', 'word44', 'word5')", lambda t, c: c.is_in(t["s"], pyarrow.array(["word1", "word22", "word333", "word44", "word5"]))),
    ("a IN (1, 5, 9, 77, 1234, 999999)", lambda t, c: c.is_in(t["a"], pyarrow.array([1, 5, 9, 77, 1234, 999999]))),
    ("lower(s) = 'word42'", lambda t, c: c.equal(c.utf8_lower(t["s"]), "word42")),
    ("length(s) > 6 AND a % 3 = 0", None),
]


def speed(folder):
    rows = 10**7
    draw = numpy.random.default_rng(1)
    data = pyarrow.table({
        "a": draw.integers(0, 10**6, rows),
        "b": draw.integers(0, 10**6, rows),
        "s": pyarrow.array([f"word{n}" for n in range(1000)]).take(pyarrow.array(draw.integers(0, 1000, rows))),
    })
    path = os.path.join(folder, "speed.arrow")
    write(path, data, 1 << 16)
    listing = os.path.join(folder, "speed.txt")
    with open(listing, "w", encoding="utf-8") as file:
        file.writelines(text + "\n" for text, _ in SPEED)
    found = run("evaluate", path, listing, 9).stdout.strip().split("\n")
    pyarrow.set_cpu_count(1)
    connection = database()
    connection.register("arrow", data)
    connection.execute("CREATE TABLE data AS SELECT * FROM arrow")
    batches = pyarrow.ipc.open_file(pyarrow.memory_map(path)).read_all().to_batches()
    print("speed: 10^7 rows, one thread, least seconds of 9 (rows that stay are equal)")
    for (text, compute), line in zip(SPEED, found, strict=True):
        seconds, kept = line.split()[1:]
        numbers = [f"ours {float(seconds):.3f}"]
        best = 9e9
        for _ in range(9):
            start = time.perf_counter()
            count = connection.execute(f"SELECT count(*) FROM data WHERE {text}").fetchone()[0]
            best = min(best, time.perf_counter() - start)
        assert count == int(kept), (text, count, kept)
        numbers.append(f"DuckDB {best:.3f}")
        if compute:
            best = 9e9
            for _ in range(9):
                start = time.perf_counter()
                count = sum(compute(batch, pyarrow.compute).true_count for batch in batches)
                best = min(best, time.perf_counter() - start)
            assert count == int(kept), (text, count, kept)
            numbers.append(f"pyarrow {best:.3f}")
        print(f"  {text:56} {', '.join(numbers)}")


def corpus(count, words, seed):
    """Texts of about `words` words, each with an edited copy; edits aim at similarities from 0.5 to 0.95."""
    draw = random.Random(seed)
    vocabulary = [f"{chr(97 + n % 26)}{n:x}" for n in range(20000)]
    texts = []
    for _ in range(count):
        size = max(8, int(words * draw.uniform(0.5, 1.5)))
        base = [draw.choice(vocabulary) for _ in range(size)]
        aim = draw.uniform(0.5, 0.95)
        # A changed word breaks five n-grams: J = (n - 5e) / (n + 5e).
        edits = max(1, round(size * (1 - aim) / (1 + aim) / 5))
        other = list(base)
        for _ in range(edits):
            other[draw.randrange(size)] = draw.choice(vocabulary)
        texts.append((base, other))
    flat = [text for pair in texts for text in pair]
    order = list(range(len(flat)))
    draw.shuffle(order)
    return [flat[n] for n in order]


def grams(words):
    return {" ".join(words[n:n + 5]) for n in range(max(1, len(words) - 4))}


def pairs_by_force(sets):
    """All pairs that share an n-gram, with their similarity."""
    places = {}
    for row, items in enumerate(sets):
        for item in items:
            places.setdefault(item, []).append(row)
    candidates = {(a, b) for rows in places.values() for a in rows for b in rows if a < b}
    return {(a, b): len(sets[a] & sets[b]) / len(sets[a] | sets[b]) for a, b in candidates}


def quality(found, exact, threshold):
    true = {pair for pair, similarity in exact.items() if similarity >= threshold}
    right = len(found & true)
    wrong = [exact.get(pair, 0.0) for pair in found - true]
    missed = [exact[pair] for pair in true - found]
    return (f"precision {right / max(1, len(found)):.4f}, recall {right / max(1, len(true)):.4f}, "
            f"least similar found {min(wrong, default=threshold):.3f}, most similar missed {max(missed, default=threshold):.3f}")


def duplicates(folder):
    from datasketch import MinHash, MinHashLSH

    for count, words in ((2000, 40), (2000, 200), (500, 1000)):
        texts = corpus(count, words, words)
        path = os.path.join(folder, "corpus.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(" ".join(text) + "\n" for text in texts)
        megabytes = os.path.getsize(path) / 1e6
        sets = [grams(text) for text in texts]
        exact = pairs_by_force(sets)
        for num_perm, threshold in ((128, 0.7), (256, 0.7), (256, 0.8)):
            done = run("near_duplicates", path, threshold, num_perm, 5, "word")
            ours = {tuple(sorted(map(int, line.split()[:2]))) for line in done.stdout.splitlines()}
            start = time.perf_counter()
            signatures = []
            for items in sets:
                signature = MinHash(num_perm=num_perm)
                signature.update_batch([item.encode() for item in items])
                signatures.append(signature)
            signing = time.perf_counter() - start
            lsh = MinHashLSH(threshold=threshold, num_perm=num_perm)
            candidates = set()
            for row, signature in enumerate(signatures):
                candidates |= {tuple(sorted((row, other))) for other in lsh.query(signature)}
                lsh.insert(row, signature)
            verified = {(a, b) for a, b in candidates if signatures[a].jaccard(signatures[b]) >= threshold}
            print(f"duplicates: {2 * count} texts of {words} words, {megabytes:.1f} MB, num_perm {num_perm}, threshold {threshold}")
            print(f"  ours                  {quality(ours, exact, threshold)}")
            print(f"  datasketch            {quality(candidates, exact, threshold)}")
            print(f"  datasketch, verified  {quality(verified, exact, threshold)}; {megabytes / signing:.1f} MB/s")
            print(f"  ours: {done.stderr.strip()}")


if __name__ == "__main__":
    chosen = sys.argv[1:] or ["meaning", "speed", "duplicates"]
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen:
            {"meaning": meaning, "speed": speed, "duplicates": duplicates}[name](folder)
