"""What the overview of a node says over time."""

import threading

import cluster as c


class Views:
    """Notes each view of the cluster, in another thread, until the cluster ends."""

    def __init__(self, cluster: c.Cluster, node: str) -> None:
        self.cluster, self.node = cluster, node
        self.seen: list[dict] = []
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self) -> None:
        while not self.cluster.stopping.wait(0.5):
            try:
                view = c.get_json(f"{self.cluster.http[self.node]}/v1/overview")
            except (OSError, ValueError):
                continue
            if not self.seen or view["at"] > self.seen[-1]["at"]:
                self.seen.append(view)


def faults_in(views: list[dict]) -> list[str]:
    """Each warning or critical finding, once, and in how many of the views it is."""
    count: dict[str, int] = {}
    for view in views:
        for one in view["findings"]:
            if one["severity"] != "info":
                count[one["title"]] = count.get(one["title"], 0) + 1
    return [f"{title} (in {often} of {len(views)} views)" for title, often in count.items()]


def nodes_of(views: list[dict], rank: int) -> dict[str, int]:
    """The nodes through which a rank reads, and in how many views each is named."""
    count: dict[str, int] = {}
    for view in views:
        for run in view["runs"]:
            for reader in run["readers"]:
                if reader["rank"] == rank:
                    count[reader["node"]] = count.get(reader["node"], 0) + 1
    return count
