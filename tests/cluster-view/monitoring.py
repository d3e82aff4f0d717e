"""A real Prometheus with the rules of docs/monitoring, whose durations are divided so that hours become minutes.

`FACTOR` divides the `for` of each alert, each range (`[1h]`), each `offset`, and the horizon of `predict_linear`. Bounds stay as
they are, since they are shares, bytes, or times of the cluster itself: the life of a certificate, the lag of a copy. The scrape
and evaluation intervals become a second. So an alert that takes 10 minutes takes 20 seconds here, and a disk that would be full
in 4 hours is one that is full in 8 minutes. FACTOR is no larger, because loaders report every 5 seconds: a window of 5 minutes
becomes 10 seconds, and has two reports.
"""

import json
import re
import subprocess
import threading
import time
import urllib.parse
from pathlib import Path

import cluster as c

FACTOR = 30
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def divided(rules: str) -> str:
    """The same rules with shorter durations."""

    def short(found: re.Match) -> str:
        ms = 1000 * int(found["number"]) * SECONDS[found["unit"]] // FACTOR
        return f"{found['before']}{ms}ms{found['after']}"

    length = r"(?P<number>\d+)(?P<unit>[smhd])"
    for before, after in ((r"for: ", r"(?=\n)"), (r"\[", r"\]"), (r"offset ", r"\b")):
        rules = re.sub(f"(?P<before>{before}){length}(?P<after>{after})", short, rules)
    return re.sub(r"(predict_linear\([^\n]*\], )([0-9 *]+)\)", rf"\1\2 / {FACTOR})", rules)


class Prometheus:
    """Scrapes the nodes of a cluster."""

    def __init__(self, cluster: c.Cluster) -> None:
        folder = cluster.folder / "prometheus"
        for kind in ("rules", "alerts"):
            (folder / kind).mkdir(parents=True)
            source = c.ROOT / "docs" / "monitoring" / kind / "shardd.yaml"
            (folder / kind / "shardd.yaml").write_text(divided(source.read_text()))
        targets = [
            {"targets": [url.removeprefix("http://")], "labels": {"cluster": "lab", "instance": node}} for node, url in cluster.http.items()
        ]
        configuration = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules/shardd.yaml", "alerts/shardd.yaml"],
            "scrape_configs": [{"job_name": "shardd", "static_configs": targets}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(configuration))  # JSON is YAML
        port = c.free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.process = cluster.processes.start(
            "prometheus",
            ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
            + [f"--web.listen-address=127.0.0.1:{port}"],
        )
        c.until("Prometheus is ready", lambda: c.get(f"{self.url}/-/ready"))

    def api(self, path: str) -> dict:
        return c.get_json(f"{self.url}/api/v1/{path}")["data"]

    def query(self, expression: str) -> list[dict]:
        return self.api(f"query?query={urllib.parse.quote(expression)}")["result"]

    def value(self, expression: str) -> float:
        """Of the first series; 0 if there is none."""
        found = self.query(expression)
        return float(found[0]["value"][1]) if found else 0.0

    def targets_up(self) -> list[str]:
        targets = self.api("targets")["activeTargets"]
        return sorted(target["labels"]["instance"] for target in targets if target["health"] == "up")

    def firing(self) -> list[dict]:
        return [alert for alert in self.api("alerts")["alerts"] if alert["state"] == "firing"]


def recorded_names() -> list[str]:
    """The names of all recording rules."""
    rules = (c.ROOT / "docs" / "monitoring" / "rules" / "shardd.yaml").read_text()
    return re.findall(r"- record: (\S+)", rules)


class Watcher:
    """Notes each alert when it is first seen to fire, and the free share of the small disk at that moment."""

    def __init__(self, cluster: c.Cluster, prometheus: Prometheus) -> None:
        self.seen: dict[tuple, dict] = {}
        self.cluster, self.prometheus = cluster, prometheus
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self) -> None:
        while not self.cluster.stopping.wait(0.3):
            try:
                free = self.cluster.free_share() if self.cluster.has_small_disk else 1.0
                for alert in self.prometheus.firing():
                    key = tuple(sorted(alert["labels"].items()))
                    self.seen.setdefault(key, {"labels": alert["labels"], "text": alert["annotations"], "at": time.monotonic(), "free": free})
            except (OSError, ValueError):
                continue

    def named(self, name: str, **labels: str) -> list[dict]:
        wanted = {"alertname": name, **labels}
        return [one for one in list(self.seen.values()) if wanted.items() <= one["labels"].items()]

    def bad(self) -> list[str]:
        """The alerts of severity warning or critical so far."""
        return [str(one["labels"]) for one in list(self.seen.values()) if one["labels"]["severity"] in ("warning", "critical")]


def have_prometheus() -> bool:
    try:
        return subprocess.run(["prometheus", "--version"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False
