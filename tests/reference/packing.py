"""Compares packing of shardd-packing with TRL, and keys and chat templates with transformers.

    python tests/reference/packing.py [--render PROGRAM] [--pack PROGRAM] [--show N] [PATH ...]

Each PATH is a file or a folder: `*.jinja` files, and Python files with templates as strings. Without a PATH, the templates in
the installed transformers and trl are taken. The programs are the examples `chat_render` and `pack`, built with
`cargo build --release -p shardd-packing --features chat --examples`.

For each template and conversation, transformers' text must be equal, its masks must be equal, and each must refuse the
conversation if the other does. The program prints counts, and each template that differs. It needs transformers and jinja2.
"""

import argparse
import ast
import collections
import datetime
import hashlib
import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import time

import transformers
import transformers.utils.chat_template_utils as hugging

NOW = datetime.datetime(2026, 7, 26, 9, 5, 0)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}

# Templates of llama-cpp-python that differ, with the reason.
KNOWN = {
    "llama-cpp-deepseek-r1.jinja": "json.dumps refuses the generator that Jinja's map makes, and the engine makes a list",
    "meetkai-functionary-medium-v3.1.jinja": "Python escapes HTML in texts that are added to one with the filter safe",
}

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather at a <place> & time, in \"plain\" words: naïve 天気.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "A city's name"},
                "days": {"type": "integer", "default": 3, "minimum": 0.5},
                "units": {"type": "array", "items": {"type": "string", "enum": ["C", "F"]}},
                "where": {"anyOf": [{"type": "string"}, {"type": "null"}], "nullable": True},
            },
            "required": ["place"],
        },
        "return": {"type": "string", "description": "A sentence"},
    },
}
CALL = {
    "id": "call12345",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"place": "Zürich", "days": 2, "exact": True, "none": None, "f": 1.5}},
}


def message(role, content, **more):
    return {"role": role, "content": content, **more}


def conversations():
    """Name, messages, tools and documents of each."""
    user = message("user", "Hi, how are you?")
    answer = message("assistant", "Fine, thanks. And you?")
    plain = [user, answer]
    system = message("system", "You are terse.")
    text_call = {**CALL, "function": {**CALL["function"], "arguments": json.dumps(CALL["function"]["arguments"])}}
    after = [
        message("tool", '{"sky": "clear", "degrees": 21}', name="get_weather", tool_call_id="call12345"),
        message("assistant", "It is clear, at 21 degrees."),
    ]
    yield "user", [user], None, None
    yield "plain", plain, None, None
    yield "system", [system, *plain], None, None
    yield "turns", [system, *plain, message("user", "Well."), message("assistant", "Good!"), user], None, None
    yield "unicode", [message("user", "Grüße 🦀 — \u2028 'x' \"y\" <b>&amp;</b>\u00a0"), message("assistant", "日本語\t\\n {{ x }}")], None, None
    yield "spaces", [message("user", "  padded \n\n"), message("assistant", "\n answer \x1c ")], None, None
    yield "empty", [message("user", ""), message("assistant", "")], None, None
    yield "none", [user, message("assistant", None)], None, None
    yield "missing", [user, {"role": "assistant"}], None, None
    yield "parts", [message("user", [{"type": "text", "text": "Look"}, {"type": "image"}]), message("assistant", [{"type": "text", "text": "A cat."}])], None, None
    yield "thinking", [user, message("assistant", "42", reasoning_content="Hm,\nsix by seven."), message("user", "Sure?"), message("assistant", "<think>\nYes\n</think>\n\nSure.")], None, None
    yield "reasoning", [user, message("assistant", "42", reasoning="Six by seven.")], None, None
    yield "tools", [system, user], [TOOL], None
    yield "no tools", [system, user, answer], [], None
    yield "call", [user, message("assistant", "", tool_calls=[CALL]), *after], [TOOL], None
    yield "call none", [user, message("assistant", None, tool_calls=[CALL]), *after], [TOOL], None
    yield "call bare", [system, user, {"role": "assistant", "tool_calls": [CALL, CALL]}, after[0], *after], [TOOL, TOOL], None
    yield "call text", [user, message("assistant", "I look.", tool_calls=[text_call]), *after], [TOOL], None
    yield "documents", plain, None, [{"title": "A", "text": "Alpha"}, {"title": "B", "text": "Beta"}]
    yield "two users", [user, user, answer, answer], None, None
    yield "odd role", [message("developer", "Be kind."), user, message("robot", "?")], None, None
    yield "begins", [answer, user], None, None
    yield "nothing", [], None, None


def variants():
    yield {}
    yield {"add_generation_prompt": True}
    yield {"add_generation_prompt": True, "variables": {"enable_thinking": False, "thinking": False, "reasoning_effort": "low"}}


class Frozen(datetime.datetime):
    @classmethod
    def now(cls, zone=None):
        return NOW


def reference(source, messages, tools, documents, variant, mask):
    """Text and byte ranges of the assistant by transformers, or the error's text."""
    kwargs = {**TOKENS, **variant.get("variables", {})}
    try:
        texts, ranges = hugging.render_jinja_template(
            [messages], tools, documents, source, mask, False, variant.get("add_generation_prompt", False), **kwargs
        )
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"
    text = texts[0]
    at = lambda character: len(text[:character].encode("utf-8", "surrogatepass"))
    found = [[at(start), at(end)] for start, end in ranges[0] if end > start] if mask else []
    return (text, union(found)), None


def union(ranges):
    merged = []
    for start, end in sorted(ranges):
        if merged and start < merged[-1][1]:
            merged[-1][1] = max(end, merged[-1][1])
        else:
            merged.append([start, end])
    return merged


def templates(paths):
    """Source by name; each source once."""
    found, seen = {}, set()
    for path in paths:
        path = pathlib.Path(path)
        files = [path] if path.is_file() else sorted([*path.rglob("*.jinja"), *path.rglob("*.py")])
        for file in files:
            text = file.read_text(encoding="utf-8", errors="replace")
            sources = [("", text)] if file.suffix == ".jinja" else strings(text)
            for name, source in sources:
                digest = hashlib.sha256(source.encode()).digest()
                if digest not in seen and "message" in source and "cuda" not in source.lower():
                    seen.add(digest)
                    found[f"{file}{name}"] = source
    return found


def strings(text):
    """The strings of a Python file that look like templates."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            source = node.value
            if re.search(r"\{%-?\s*for\b", source) and "{{" in source and "endfor" in source and "message" in source:
                yield f":{node.lineno}", source


def default_paths():
    for name in ("transformers", "trl"):
        spec = importlib.util.find_spec(name)
        if spec and spec.submodule_search_locations:
            yield from spec.submodule_search_locations


def compare_chat(program, paths, show):
    cases = []
    for name, source in templates(paths).items():
        mask = bool(re.search(r"\{%[-+]?\s*generation\s*[-+]?%\}", source))
        for conversation, messages, tools, documents in conversations():
            for variant in variants():
                cases.append((name, source, mask, conversation, messages, tools, documents, variant))
    hugging.datetime = Frozen
    lines, expected, seconds = [], [], collections.Counter()
    for name, source, mask, conversation, messages, tools, documents, variant in cases:
        started = time.perf_counter()
        expected.append(reference(source, json.loads(json.dumps(messages)), tools, documents, variant, mask))
        seconds["transformers"] += time.perf_counter() - started
        options = {"tools": tools, "documents": documents, "now": NOW.isoformat(), **variant}
        options["assistant"] = "generation" if mask else "none"
        lines.append(json.dumps({"source": source, "special_tokens": TOKENS, "messages": messages, "options": options}))
    answer = subprocess.run([program], input="\n".join(lines), capture_output=True, text=True, check=True, encoding="utf-8")
    answers = [json.loads(line) for line in answer.stdout.split("\n") if line]
    counts, kinds, differing, shown = collections.Counter(), collections.Counter(), {}, 0
    for (name, source, mask, conversation, *_, variant), (good, error), ours in zip(cases, expected, answers, strict=True):
        seconds["this crate"] += ours["seconds"]
        kind = outcome(good, error, ours, mask)
        counts[kind] += 1
        kinds["masks" if mask else "texts", kind] += 1
        if kind not in ("equal", "both refuse"):
            differing.setdefault(name, []).append((kind, conversation, variant, good, error, ours))
    print(f"{len({case[0] for case in cases})} templates, {len(cases)} renderings: {dict(counts)}")
    print(f"with generation blocks and without: {dict(kinds)}")
    print(f"seconds, in one process each: {dict(seconds)}")
    for name, differences in differing.items():
        reason = KNOWN.get(pathlib.Path(name).name, "unknown")
        print(f"\n{name}: {len(differences)} differ, reason {reason}: {dict(collections.Counter(kind for kind, *_ in differences))}")
        for kind, conversation, variant, good, error, ours in differences[:show]:
            print(f"  {kind}: {conversation} {variant}")
            print(f"    transformers: {error or explain(good, ours)}")
            print(f"    this crate:   {ours.get('error') or explain((ours['text'], ours['assistant']), {'text': good[0] if good else '', 'assistant': good[1] if good else None})}")
    return all(pathlib.Path(name).name in KNOWN for name in differing)


def compare_prefixes(program, paths):
    """How often the assistant's parts by prefixes are those of generation blocks, apart from white space around them."""
    cases = [
        (name, source, messages, tools, documents)
        for name, source in templates(paths).items()
        if re.search(r"\{%[-+]?\s*generation\s*[-+]?%\}", source)
        for _, messages, tools, documents in conversations()
    ]
    lines = []
    for name, source, messages, tools, documents in cases:
        for assistant in ("generation", "prefixes"):
            options = {"tools": tools, "documents": documents, "now": NOW.isoformat(), "assistant": assistant}
            lines.append(json.dumps({"source": source, "special_tokens": TOKENS, "messages": messages, "options": options}))
    answer = subprocess.run([program], input="\n".join(lines), capture_output=True, text=True, check=True, encoding="utf-8")
    answers = [json.loads(line) for line in answer.stdout.split("\n") if line]
    counts = collections.Counter()
    for blocks, prefixes in zip(answers[::2], answers[1::2], strict=True):
        if "error" in blocks:
            counts["refused in both ways" if "error" in prefixes else "refused with blocks"] += 1
        elif "error" in prefixes:
            counts["no prefixes" if "no beginning" in prefixes["error"] else "a prefix is refused"] += 1
        else:
            text = blocks["text"].encode()
            parts = lambda rendered: [part for start, end in union(rendered["assistant"]) if (part := text[start:end].strip())]
            one, other = parts(blocks), parts(prefixes)
            pairs = list(zip(one, other))
            same = len(one) == len(other) and all(left.endswith(right) or right.endswith(left) for left, right in pairs)
            counts["equal" if one == other else "equal ends, other beginnings" if same else "other parts"] += 1
    print(f"parts by prefixes and by blocks, {len(cases)} conversations: {dict(counts)}")


def outcome(good, error, ours, mask):
    if error or "error" in ours:
        return "both refuse" if error and "error" in ours else "only transformers refuses" if error else "only this crate refuses"
    if good[0] != ours["text"]:
        return "text differs"
    return "mask differs" if mask and good[1] != union(ours["assistant"]) else "equal"


def explain(one, other):
    """The place of the first difference."""
    text, ranges = one
    if text == other.get("text", ""):
        return f"ranges {ranges}"
    pairs = zip(text, other.get("text", ""))
    at = next((index for index, (left, right) in enumerate(pairs) if left != right), min(len(text), len(other.get("text", ""))))
    return f"at {at}: {text[max(0, at - 30):at + 60]!r}"


def check_flat():
    """Prints the keys that `flat/tests.rs` expects."""
    features = [{"input_ids": [10, 11, 12]}, {"input_ids": [20]}, {"input_ids": [30, 31]}]
    collator = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    batch = collator(features, return_tensors="np")
    expected = {
        "labels": [[-100, 11, 12, -100, -100, 31]],
        "position_ids": [[0, 1, 2, 0, 0, 1]],
        "seq_idx": [[0, 0, 0, 1, 2, 2]],
        "cu_seq_lens_q": [0, 3, 4, 6],
        "cu_seq_lens_k": [0, 3, 4, 6],
        "max_length_q": 3,
        "max_length_k": 3,
    }
    for key, value in expected.items():
        found = batch[key] if isinstance(batch[key], int) else batch[key].tolist()
        assert found == value, (key, found, value)
    assert str(batch["cu_seq_lens_q"].dtype) == "int32"
    print(f"DataCollatorWithFlattening of transformers {transformers.__version__}: as expected")


def check_packing(program):
    """Compares best_fit_decreasing with TRL's packing of the strategy bfd: the tokens of the sequences are equal.

    Which of two documents of equal length is in which sequence may differ, as may which of two sequences of equal room is
    taken: TRL sorts documents by an algorithm without that promise, and takes the sequence that waited longest.
    """
    try:
        import numpy
        import pyarrow
        from trl.data_utils import _pack_bfd
    except ImportError as error:
        print(f"skipped: packing is not compared with TRL ({error})")
        return
    random = numpy.random.default_rng(0)
    cases, lines, seconds = [], [], collections.Counter()
    for length in (64, 2048, 8192):
        for count in (1, 100, 20_000):
            for name in ("truncate", "split"):
                lengths = (1 + random.lognormal(5.9, 1.0, count)).astype(int)
                started = time.perf_counter()
                table = pyarrow.table({"input_ids": pyarrow.array([[0] * tokens for tokens in lengths])})
                prepared = time.perf_counter()
                packed = _pack_bfd(table, length, name)
                seconds["TRL"] += time.perf_counter() - prepared
                cases.append([[int(part) for part in parts] for parts in packed["seq_lengths"].to_pylist()])
                packing = {"length": length, "strategy": "bfd", "long": name}
                lines.append(json.dumps({"packing": packing, "lengths": lengths.tolist()}))
    answer = subprocess.run([program], input="\n".join(lines), capture_output=True, text=True, check=True)
    equal = 0
    for theirs, line in zip(cases, answer.stdout.splitlines(), strict=True):
        ours = json.loads(line)
        seconds["this crate"] += ours["seconds"]
        tokens = sorted(sum(length for *_, length in pieces) for pieces in ours["sequences"])
        equal += tokens == sorted(map(sum, theirs))
    print(f"packings with the sequences' tokens of TRL: {equal} of {len(cases)}; seconds: {dict(seconds)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--render", default="target/release/examples/chat_render", help="the example chat_render")
    parser.add_argument("--pack", default="target/release/examples/pack", help="the example pack")
    parser.add_argument("--show", type=int, default=1, help="differences to show per template")
    parser.add_argument("paths", nargs="*")
    options = parser.parse_args()
    check_flat()
    check_packing(options.pack)
    compare_prefixes(options.render, options.paths or list(default_paths()))
    return 0 if compare_chat(options.render, options.paths or list(default_paths()), options.show) else 1


if __name__ == "__main__":
    sys.exit(main())
