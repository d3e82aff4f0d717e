"""Checks the files of docs/monitoring against each other and against docs/reference/metrics.md. Prints each fault.

    check.py FOLDER

writes files for promtool to FOLDER: `dashboards.yaml` has each query of the dashboards as a rule, and `prometheus-N.yml` each
scrape configuration of the README.
"""

import json
import re
import sys
from pathlib import Path

try:
    import yaml
except ImportError:
    print("skipped: a Python with PyYAML (set SHARDD_PYTHON)")
    sys.exit(0)

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / "docs/monitoring"
TESTS = ROOT / "tests/monitoring/rules_test.yaml"
REFERENCE = ROOT / "docs/reference/metrics.md"

SEVERITIES = {"critical", "warning", "info"}
ANNOTATIONS = {"summary", "description", "runbook_url", "dashboard_url"}
SECTIONS = ["Meaning", "Impact", "Diagnosis", "Remedy"]
# Series that Prometheus makes itself.
MADE_BY_PROMETHEUS = {"up", "ALERTS"}
COLUMNS = 24

faults = []


def fault(file, text):
    faults.append(f"{file}: {text}")


def groups_of(kind):
    """The groups of rules of a kind, each with the name of its file."""
    for file in sorted((HOME / kind).glob("*.yaml")):
        for group in yaml.safe_load(file.read_text())["groups"]:
            yield f"{kind}/{file.name}", group


def rules_of(kind):
    for file, group in groups_of(kind):
        for rule in group["rules"]:
            yield file, rule


def metrics_of(expression):
    """The names of the metrics and the recorded series in a PromQL expression."""
    text = re.sub(r'"(?:\\.|[^"\\])*"', "", expression)
    text = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", text)
    text = re.sub(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", text)
    text = re.sub(r"\boffset\s+-?\w+", " ", text)
    words = re.finditer(r"(?<![\w:.])[a-zA-Z_:][\w:]*", text)
    keywords = {"and", "or", "unless", "bool", "Inf", "NaN"}
    return {
        word[0]
        for word in words
        if word[0] not in keywords and not text[word.end() :].lstrip().startswith("(") and word[0] not in AGGREGATIONS
    }


# An aggregation may have its labels before its parentheses.
AGGREGATIONS = set("sum min max avg count stddev stdvar topk bottomk quantile count_values group".split())


def listed_metrics():
    """The names of the series that nodes export, by the page of metrics."""
    names = set(MADE_BY_PROMETHEUS)
    for name, kind in re.findall(r"^\| `(\w+)` \| (\w+) \|", REFERENCE.read_text(), re.M):
        names.add(name)
        if kind == "histogram":
            names |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    return names


# --- alerts ----------------------------------------------------------------------------------------------------------


def check_alerts():
    alerts = list(rules_of("alerts"))
    runbooks = {file.stem for file in (HOME / "runbooks").glob("*.md")}
    for file, rule in alerts:
        name, place = rule["alert"], f"{file}: {rule['alert']}"
        if not re.fullmatch("Shardd([A-Z][a-z]+)+", name):
            fault(place, "the name is not Shardd and words")
        if rule["labels"].get("severity") not in SEVERITIES:
            fault(place, f"no severity of {sorted(SEVERITIES)}")
        annotations = rule["annotations"]
        for key in sorted(ANNOTATIONS ^ set(annotations)):
            fault(place, f"{key} is missing or unknown")
        if not annotations.get("runbook_url", "").endswith(f"docs/monitoring/runbooks/{name}.md"):
            fault(place, "runbook_url is not that of its runbook")
        dashboard = re.match(r"/d/([\w-]+)\?", annotations.get("dashboard_url", ""))
        if not dashboard or dashboard[1] not in {board["uid"] for _, board in dashboards()}:
            fault(place, "dashboard_url is not that of a dashboard")
        if name not in runbooks:
            fault(place, f"runbooks/{name}.md is missing")
    for name in sorted(runbooks - {rule["alert"] for _, rule in alerts}):
        fault(f"runbooks/{name}.md", "there is no such alert")
    for name in sorted(runbooks):
        page = (HOME / "runbooks" / f"{name}.md").read_text()
        headings = re.findall(r"^## (.*)$", page, re.M)
        if not page.startswith(f"# {name}\n") or headings != SECTIONS:
            fault(f"runbooks/{name}.md", f"the headings are not {name} and {SECTIONS}")


def check_tests():
    """Whether each alert has a case in which it fires, and one in which it does not, and the healthy hours have all metrics."""
    tests = yaml.safe_load(TESTS.read_text())
    order = [group["name"] for kind in ("rules", "alerts") for _, group in groups_of(kind)]
    if tests["group_eval_order"] != order:
        fault("rules_test.yaml", f"group_eval_order is not {order}")
    groups = tests["tests"]
    fires, rests = [], set()
    for group in groups:
        for case in group.get("alert_rule_test", []):
            fires += [(case["alertname"], alert["exp_labels"]) for alert in case["exp_alerts"]]
            if not case["exp_alerts"] and group["name"].startswith("not "):
                rests.add(case["alertname"])
    for file, rule in rules_of("alerts"):
        labels = rule["labels"]
        if not any(name == rule["alert"] and labels.items() <= found.items() for name, found in fires):
            fault(file, f"no case in which {rule['alert']} fires with {labels}")
        if rule["alert"] not in rests:
            fault(file, f"no case in which {rule['alert']} does not fire")
    healthy = next(group for group in groups if group["name"] == "no alert, healthy hours")
    series = {re.match(r"[\w:]+", one["series"])[0] for one in healthy["input_series"]}
    recorded = {rule["record"] for _, rule in rules_of("rules")}
    used = set().union(*(metrics_of(rule["expr"]) for kind in ("alerts", "rules") for _, rule in rules_of(kind)))
    for name in sorted(used - recorded - series):
        fault("rules_test.yaml", f"the healthy hours lack {name}")


# --- runbooks --------------------------------------------------------------------------------------------------------


def check_commands():
    """Whether the commands of shardctl in the pages, and their flags, are those of its reference."""
    sections = re.split(r"^## ", (ROOT / "docs/reference/shardctl.md").read_text(), flags=re.M)[1:]
    flags = {text.split("\n", 1)[0]: set(re.findall(r"^ +(?:-\w, )?(--[\w-]+)", text, re.M)) for text in sections}
    groups = {text.split("\n", 1)[0] for text in sections if "\nCommands:\n" in text}
    for page in sorted(HOME.rglob("*.md")):
        text = page.read_text()
        code = re.findall(r"^    (.*)$", text, re.M) + re.findall(r"`([^`]+)`", text)
        for line in code:
            command = re.match(r"shardctl ([^|#;]*)", line)
            if not command:
                continue
            words = command[1].split()
            names = [word for word in words if not word.startswith("-")]
            name = next((n for n in (" ".join(["shardctl", *names[:2]]), f"shardctl {names[0]}") if n in flags), None)
            if not name or name in groups:
                fault(page.relative_to(ROOT), f"there is no command {line}")
                continue
            for flag in {word.split("=")[0] for word in words if word.startswith("--")} - flags[name] - flags["shardctl"]:
                fault(page.relative_to(ROOT), f"{name} has no {flag}")


# --- dashboards ------------------------------------------------------------------------------------------------------


def dashboards():
    for file in sorted((HOME / "dashboards").glob("*.json")):
        try:
            yield f"dashboards/{file.name}", json.loads(file.read_text())
        except ValueError as error:
            sys.exit(f"dashboards/{file.name}: {error}")


def queries(board):
    """Each query of a dashboard, with the title of its panel or variable. Variables of Grafana are replaced."""
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            yield f"{panel['id']} {panel['title']}", plain(target["expr"])
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            query = variable["query"]["query"]
            series = re.fullmatch(r"label_values\((.*), \w+\)", query)
            yield f"variable {variable['name']}", plain(series[1] if series else query)


def plain(expression):
    for name, value in {"$__rate_interval": "5m", "$__interval": "1m", "$__range": "1h"}.items():
        expression = expression.replace(name, value)
    return re.sub(r"\$\{?\w+\}?", ".*", expression)


def check_dashboards():
    uids, ids = set(), set()
    for file, board in dashboards():
        if board["uid"] in uids or not board["title"].startswith("shardd / "):
            fault(file, "another dashboard has this uid, or the title does not begin with shardd")
        uids.add(board["uid"])
        taken = {}
        for panel in board["panels"]:
            place = f"{file}: {panel['title']}"
            if (file, panel["id"]) in ids:
                fault(place, "another panel has this id")
            ids.add((file, panel["id"]))
            check_place(place, panel, taken)
            if panel["type"] == "row":
                continue
            if not panel.get("description"):
                fault(place, "no description")
            if panel["type"] != "table" and "unit" not in panel["fieldConfig"]["defaults"]:
                fault(place, "no unit")
            for source in [panel, *panel["targets"]]:
                if source.get("datasource") != {"type": "prometheus", "uid": "${datasource}"}:
                    fault(place, "the data source is not the variable")
            for target in panel["targets"]:
                if panel["type"] == "timeseries" and not target.get("legendFormat"):
                    fault(place, "a query without a legend")


def check_place(place, panel, taken):
    at = panel["gridPos"]
    if at["x"] + at["w"] > COLUMNS:
        fault(place, "wider than the dashboard")
    for x in range(at["x"], at["x"] + at["w"]):
        for y in range(at["y"], at["y"] + at["h"]):
            if (x, y) in taken:
                fault(place, f"lies over {taken[x, y]}")
                return
            taken[x, y] = panel["title"]


# --- metrics ---------------------------------------------------------------------------------------------------------


def check_metrics():
    """Whether each name in rules, alerts and dashboards is one that nodes export or a rule records."""
    known = listed_metrics() | {rule["record"] for _, rule in rules_of("rules")}
    unknown = {}
    for kind in ("rules", "alerts"):
        for file, rule in rules_of(kind):
            for name in metrics_of(rule["expr"]) - known:
                unknown.setdefault(name, set()).add(file)
    for file, board in dashboards():
        for _, expression in queries(board):
            for name in metrics_of(expression) - known:
                unknown.setdefault(name, set()).add(file)
    for name, files in sorted(unknown.items()):
        fault("docs/reference/metrics.md", f"lists no {name} ({', '.join(sorted(files))})")
    used = set().union(*(metrics_of(e) for _, board in dashboards() for _, e in queries(board)))
    used |= set().union(*(metrics_of(rule["expr"]) for kind in ("alerts", "rules") for _, rule in rules_of(kind)))
    for name in sorted({rule["record"] for _, rule in rules_of("rules")} - used):
        fault("rules/shardd.yaml", f"nothing uses {name}")


# --- files for promtool ----------------------------------------------------------------------------------------------


def write_files(folder):
    groups = []
    for file, board in dashboards():
        for number, (place, expression) in enumerate(queries(board)):
            rule = {"record": "dashboard:query", "expr": expression}
            groups.append({"name": f"{file}: {place} ({number})", "rules": [rule]})
    (folder / "dashboards.yaml").write_text(yaml.safe_dump({"groups": groups}))
    blocks = re.findall(r"^```yaml\n(.*?)^```$", (HOME / "README.md").read_text(), re.M | re.S)
    for number, block in enumerate(block for block in blocks if "scrape_configs:" in block):
        (folder / f"prometheus-{number}.yml").write_text(block)


def main():
    for check in (check_alerts, check_tests, check_commands, check_dashboards, check_metrics):
        check()
    write_files(Path(sys.argv[1]))
    for text in faults:
        print(text)
    sys.exit(1 if faults else 0)


main()
