"""Builds the images, and runs Pods of the rendered chart and of the examples in runc.

    stories.py PROGRAMS

Prints a line for each story, and `N passed, N failed` at the end.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import pods
import render

PROGRAMS = Path(sys.argv[1]).resolve()
FIRST, FIRST_AGAIN = "127.77.0.1", "127.77.0.2"
NODES, RANKS = ["127.77.0.11", "127.77.0.12"], ["127.77.1.1", "127.77.1.2"]
# The store is a folder that all Pods mount, as of a network file system.
VALUES = {
    "store": {"url": "/srv/shared/store"},
    "extraVolumes": [{"name": "shared", "hostPath": {"path": "/srv/shared", "type": "Directory"}}],
    "extraVolumeMounts": [{"name": "shared", "mountPath": "/srv/shared"}],
    "first": {"cacheSize": "256MiB"},
    "nodes": {"cacheSize": "256MiB", "socketHostPath": "/var/lib/shardd-socket", "replicas": 2},
    "drain": {"graceSeconds": 30},
}
SHARED = {"name": "shared", "hostPath": {"path": "/srv/shared"}}


def test_two_builds_of_an_image_have_the_same_bytes(folder):
    """Builds both images, and that of nodes again from newer files of the same bytes. Returns the images."""
    copies = folder / "programs"
    copies.mkdir()
    for program in ("shardd", "shardctl"):
        shutil.copyfile(PROGRAMS / program, copies / program)
        (copies / program).chmod(0o755)

    def run(programs, to, *names):
        command = [render.ROOT / "server/kubernetes/image/build", "--programs", programs, "--to", folder / to, *names]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer
        return answer.stdout

    output = run(PROGRAMS, "images")
    again = run(copies, "again", "shardd")
    assert output.startswith(again), f"two builds differ: {output}{again}"
    subprocess.run(["diff", "-r", folder / "images/shardd", folder / "again/shardd"], check=True)
    images = {name: pods.unpack(folder / "images" / name, folder / "unpacked" / name) for name in ("shardd", "shardtrain")}
    for name, image in images.items():
        assert image["user"] == "65532:65532", image
        programs = {file.relative_to(image["rootfs"]) for file in image["rootfs"].rglob("*bin/*")}
        assert programs == {Path("usr/bin") / name, Path("usr/bin/shardctl")}, programs
    print("    " + output.strip().replace("\n", "\n    "))
    return images


def templates(documents):
    return {one["metadata"]["name"]: one["spec"]["template"] for one in documents if one["kind"] == "StatefulSet"}


def names_of_services(documents, template, address):
    """The names of the Services that select a Pod."""
    for service in (one for one in documents if one["kind"] == "Service"):
        if service["spec"]["selector"].items() <= template["metadata"]["labels"].items():
            name = service["metadata"]["name"]
            yield from ((full, address) for full in (name, f"{name}.ml.svc.cluster.local"))


class Cluster:
    """The first node and two others, from the rendered chart."""

    def __init__(self, folder, images):
        self.machine = pods.Machine(folder, images)
        self.documents = render.chart(VALUES)
        self.templates = templates(self.documents)
        self.first, self.nodes = None, []

    def start_first(self, address=FIRST):
        template = self.templates["shardd-first"]
        self.machine.names |= dict(names_of_services(self.documents, template, address))
        self.first = pods.Pod(self.machine, "shardd-first-0", template, address, claims=["data"]).start()
        self.first.wait_for(self.first.spec["containers"][0], "readinessProbe")
        status = Path(f"/proc/{self.process_id()}/status").read_text()
        assert re.search(r"^Uid:\s+65532\s+65532", status, re.M), status
        assert re.search(r"^CapEff:\s+0+$", status, re.M) and re.search(r"^NoNewPrivs:\s+1$", status, re.M), status

    def process_id(self):
        state = self.machine.runc("state", self.first.running["shardd"].name, capture_output=True, text=True, check=True)
        return json.loads(state.stdout)["pid"]

    def bootstrap(self):
        """Makes the Secrets by the script, and reads a node by each Service name that the certificate has to have."""
        state = self.machine.folder / "kubectl"
        (state / "secrets").mkdir(parents=True)
        (state / "bin").mkdir()
        shutil.copy(render.ROOT / "tests/kubernetes/kubectl.py", state / "bin/kubectl")
        (state / "bin/kubectl").chmod(0o755)
        (state / "pod").write_text("shardd-first-0")
        (state / "exec").write_text(json.dumps(["runc", "--root", str(self.machine.folder / "runc"), "exec", self.first.running["shardd"].name]))
        command = [render.ROOT / "server/kubernetes/bootstrap", "shardd", "--namespace", "ml"]
        given = os.environ | {"KUBECTL_STATE": str(state), "PATH": f"{state / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
        for words in ("created", "exists"):
            answer = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
            assert answer.returncode == 0, answer
            assert answer.stdout.split() == [word for name in ("join", "metrics", "trainers") for word in (f"secret/shardd-{name}", words)], answer
        self.machine.secrets = {file.name: json.loads(file.read_text()) for file in (state / "secrets").iterdir()}

    def start_nodes(self):
        template = self.templates["shardd-node"]
        self.machine.names |= dict(names_of_services(self.documents, template, NODES[0])) | {
            name: self.first.address for name in self.machine.names if name.startswith("shardd-first")}
        self.nodes = []
        for number, address in enumerate(NODES):
            node = pods.Pod(self.machine, f"shardd-node-{number}", template, address, claims=["data"]).start()
            node.wait_for(node.spec["containers"][0], "readinessProbe")
            self.nodes.append(node)
        assert self.live() == {"shardd-first-0", "shardd-node-0", "shardd-node-1"}, self.status()

    def shardctl(self, *arguments):
        return self.first.running["shardd"].run("shardctl", *arguments)

    def status(self):
        return self.shardctl("status")

    def transports(self, run):
        """How each rank of a run gets the grains of a node: by (rank, node)."""
        rows = re.findall(rf"^{run} +(\d+) +(\S+) +\d+ +(files|ring|stream)$", self.status(), re.M)
        return {(int(rank), node): transport for rank, node, transport in rows}

    def live(self):
        return set(re.findall(r"^(\S+) +https://\S+ +live", self.status(), re.M))

    def ingest(self):
        data = self.machine.host_path("/srv/shared") / "train.parquet"
        shutil.copyfile(render.ROOT / "client/data/digits/train.parquet", data)
        self.shardctl("ingest", "/srv/shared/train.parquet", "--name", "digits")
        self.shardctl("partition", "digits", "--q", "0.1", "--partitions", "8")

    def ranks(self, example, epochs):
        """Two Pods of an example. Its bucket is the folder that all mount, and it trains for some epochs."""
        [document] = render.examples()[example]
        [job] = document["spec"]["replicatedJobs"]
        template = job["template"]["spec"]["template"]
        trainer = template["spec"]["containers"][0]
        changed = {"--checkpoints=s3://training/kept": "--checkpoints=/srv/shared/kept", "--log-every-s=10": "--log-every-s=1"}
        trainer["args"] = [changed.get(word, word) for word in trainer["args"]] + [f"--epochs={epochs}"]
        for entry in trainer["env"]:
            if entry["name"] == "WORLD_SIZE":
                entry["value"] = "2"
        template["spec"]["volumes"].append(SHARED)
        for container in template["spec"].get("initContainers", [])[1:] + [trainer]:
            container["volumeMounts"].append({"name": "shared", "mountPath": "/srv/shared"})
        self.machine.names["digits-rank-0-0.digits"] = RANKS[0]
        self.machine.secrets["training-bucket"] = {}
        return [pods.Pod(self.machine, f"digits-rank-0-{rank}-{example[0]}", template, address,
                         labels=[("batch.kubernetes.io/job-completion-index", str(rank))], host=NODES[rank])
                for rank, address in enumerate(RANKS)]


def wait_until(condition, what, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, what()
        time.sleep(0.1)


def trains(ranks):
    """Waits until rank 0 reports progress."""
    def progress():
        return len(re.findall(r"^epoch \d+ of", ranks[0].log("trainer"), re.M))

    before = progress()
    wait_until(lambda: progress() > before, lambda: "\n".join(rank.log("trainer") for rank in ranks))


def end_well(ranks):
    codes = [rank.wait("trainer", 240) for rank in ranks]
    assert codes == [0, 0], [codes, *(rank.log("trainer")[-2000:] for rank in ranks)]


def start_together(ranks):
    for rank in ranks:
        rank.start()


def stop_and_restart(ranks):
    """SIGTERM to one rank: all write a checkpoint and end with 75. Then all start again."""
    ranks[1].terminate("trainer")
    codes = [rank.wait("trainer") for rank in ranks]
    assert codes == [75, 75], [codes, *(rank.log("trainer") for rank in ranks)]
    for rank in ranks:
        rank.restart("trainer")


def test_nodes_join_without_privileges(cluster):
    """The first node runs as 65532 and without capabilities, on a read-only root. The Secrets of the bootstrap script let the others
    join, by the name of its Service."""
    cluster.start_first()
    cluster.bootstrap()
    cluster.start_nodes()
    cluster.ingest()


def test_ranks_continue_from_a_checkpoint_while_a_node_drains(cluster):
    """Ranks map the files of the nodes on their machine. A rank that gets SIGTERM leaves a checkpoint, all end with 75, and the same
    Pods continue. A node that gets SIGTERM drains within the time that Kubernetes waits, under the training."""
    ranks = cluster.ranks("jobset.yaml", 30)
    start_together(ranks)
    trains(ranks)
    # The first node has no socket on the machine.
    transports = cluster.transports("digits-1")
    assert transports and all(way == ("stream" if "first" in node else "files") for (_, node), way in transports.items()), cluster.status()
    stop_and_restart(ranks)
    trains(ranks)
    node = cluster.nodes[1]
    spent, code = node.terminate("shardd")
    assert code == 0 and '"message":"drained"' in node.log("shardd"), node.log("shardd")
    end_well(ranks)
    wait_until(lambda: "shardd-node-1" not in cluster.live(), cluster.status)
    print(f"    SIGTERM to exit of the drained node: {spent:.1f} s of {node.spec['terminationGracePeriodSeconds']} s")


def test_a_trainer_outlives_its_sidecar(cluster):
    """The node in the Pod of a rank is killed and started again in place: the training ends well. So does a trainer that ends and is
    started again beside its node."""
    ranks = cluster.ranks("sidecar.yaml", 30)
    start_together(ranks)
    trains(ranks)
    transports = cluster.transports("digits-2")
    assert transports.get((0, ranks[0].name)) == "files", cluster.status()
    ranks[1].running["node"].kill(signal.SIGKILL)
    ranks[1].restart("node")
    ranks[1].wait_for(ranks[1].named("node"), "startupProbe")
    assert all(rank.running["trainer"].process.poll() is None for rank in ranks), [rank.log("trainer") for rank in ranks]
    stop_and_restart(ranks)
    end_well(ranks)
    for rank in ranks:
        assert rank.terminate("node")[1] == 0, rank.log("node")


def test_nodes_find_a_first_node_at_another_address(cluster):
    """The Pod of the first node is made again and has another address. The other nodes find it by the copy of the metadata."""
    assert cluster.first.terminate("shardd")[1] == 0
    cluster.start_first(FIRST_AGAIN)
    running = {node.name for node in cluster.nodes if node.running["shardd"].process.poll() is None}
    assert running, "another node runs"
    wait_until(lambda: cluster.live() == running | {"shardd-first-0"}, cluster.status)


def may_run_pods():
    if os.getuid() != 0 or not shutil.which("runc"):
        return False
    return subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False).returncode == 0


def main():
    # So that containers end with this program.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="shardd-kubernetes-"))
    counts = {"passed": 0, "failed": 0}
    cluster = None

    def story(test, argument):
        name, begun = test.__name__.removeprefix("test_").replace("_", " "), time.monotonic()
        try:
            result = test(argument)
        except Exception:
            counts["failed"] += 1
            print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
            raise
        counts["passed"] += 1
        print(f"ok     {name} ({time.monotonic() - begun:.1f} s)", flush=True)
        return result

    try:
        images = story(test_two_builds_of_an_image_have_the_same_bytes, folder)
        if may_run_pods():
            cluster = Cluster(folder, images)
            story(test_nodes_join_without_privileges, cluster)
            story(test_ranks_continue_from_a_checkpoint_while_a_node_drains, cluster)
            story(test_a_trainer_outlives_its_sidecar, cluster)
            story(test_nodes_find_a_first_node_at_another_address, cluster)
        else:
            print("skipped: there is no runc, or no root that may make namespaces, so no Pod runs")
    except Exception:
        if not counts["failed"]:
            counts["failed"] += 1
            traceback.print_exc(file=sys.stdout)
        print("the stories after it are not run")
    finally:
        if cluster:
            cluster.machine.stop_all()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{counts['passed']} passed, {counts['failed']} failed")
    sys.exit(counts["failed"] > 0)


main()
