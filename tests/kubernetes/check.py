"""Checks the chart and the examples for trainers. Prints a line for each check, and `N passed, N failed` at the end."""

import json
import re
import subprocess
import sys

import yaml

import breaks
import render
import rules
import schemas

passed, failed = 0, 0


def check(name, faults):
    """Counts a check, which has passed if there are no faults."""
    global passed, failed
    faults = list(faults)
    if faults:
        failed += 1
        print("\n    ".join([f"FAILED {name}", *faults]), flush=True)
    else:
        passed += 1
        print(f"ok     {name}", flush=True)


def schema_faults(documents):
    for document in documents:
        yield from (f"{document['kind']} {document['metadata']['name']}: {fault}" for fault in schemas.faults(document))


def lint():
    answer = render.run_helm(["lint", "--strict"], render.STORE)
    return [answer.stdout + answer.stderr] if answer.returncode else []


def copies():
    answer = subprocess.run([render.ROOT / "server/kubernetes/sync-monitoring", "--check"], capture_output=True, text=True, check=False)
    return [answer.stdout + answer.stderr] if answer.returncode else []


def monitoring(documents):
    """The rules and dashboards that the chart installs are those of docs/monitoring."""
    home = render.ROOT / "docs/monitoring"
    found = {one["metadata"]["name"]: one for one in documents}
    for part in ("rules", "alerts"):
        if found[f"shardd-{part}"]["spec"] != yaml.safe_load((home / part / "shardd.yaml").read_text()):
            yield f"PrometheusRule shardd-{part} has other rules than docs/monitoring/{part}"
    for part in ("cluster", "training"):
        text = found[f"shardd-dashboard-{part}"]["data"][f"shardd-{part}.json"]
        if json.loads(text) != json.loads((home / "dashboards" / f"{part}.json").read_text()):
            yield f"ConfigMap shardd-dashboard-{part} has another dashboard than docs/monitoring"


def leaves(values, path=""):
    """The paths of the values that a user sets."""
    for key, value in values.items():
        if isinstance(value, dict) and value and key not in ("requests", "limits", "labels"):
            yield from leaves(value, f"{path}{key}.")
        else:
            yield path + key


def readme():
    """The table of the README has the values of the chart, each once."""
    listed = re.findall(r"^\| `([\w.]+)`", (render.CHART / "README.md").read_text(), re.MULTILINE)
    there = {re.sub(r"\.(requests|limits)$", "", leaf) for leaf in leaves(yaml.safe_load((render.CHART / "values.yaml").read_text()))}
    yield from (f"README.md lacks {name}" for name in sorted(there - set(listed)))
    yield from (f"README.md has {name}, which is no value" for name in sorted(set(listed) - there))
    yield from (f"README.md has {name} twice" for name in sorted({name for name in listed if listed.count(name) > 1}))


charts = {name: render.chart(values) for name, values in render.CASES.items()}
examples = render.examples()
check("helm lint", lint())
check("monitoring files are those of docs/monitoring", [*copies(), *monitoring(charts["daemonset"])])
check("README has all values", readme())
for name, documents in (charts | examples).items():
    check(f"schemas: {name} ({len(documents)} manifests)", schema_faults(documents))
    check(f"rules: {name}", rules.faults(documents))
known = len(breaks.MANIFESTS) + len(breaks.CUSTOM) + len(breaks.VALUES)
check(f"{known} manifests and values that are broken on purpose are found", breaks.unnoticed(charts, examples))
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
