"""What a manifest keeps beyond its schema: rules of safety, and that it fits the programs and the manifests beside it."""

import re

from render import NAMESPACE, ROOT

POD_OWNERS = ("StatefulSet", "DaemonSet", "JobSet", "ClusterTrainingRuntime")
# After its grace, a draining node has 10 s to end (docs/OPERATIONS.md).
END_SECONDS = 10
# A node that stops without a drain ends within 5 s.
STOP_SECONDS = 5
# The longest name of a node, and the longest suffix of the Pods of an owner.
NODE_NAME = 40
SUFFIX = {"StatefulSet": "-9999", "DaemonSet": "-abcde"}


def served_paths():
    """The paths that nodes answer a GET on: the table of docs/API.md, which a test of the server writes."""
    table = (ROOT / "docs/API.md").read_text().split("<!-- end of routes -->")[0]
    return set(re.findall(r"^\| GET \| `([^`]+)`", table, re.MULTILINE))


def reference(program):
    """The flags and the variables of a program: its page of docs/reference, which a test writes from its --help."""
    text = (ROOT / f"docs/reference/{program}.md").read_text()
    return set(re.findall(r"^ +(?:-\w, )?(--[a-z][a-z-]*)", text, re.MULTILINE)), set(re.findall(r"\bSHARDD_[A-Z_]+", text))


PATHS = served_paths()
PROGRAMS = {program: reference(program) for program in ("shardd", "shardctl", "shardtrain")}


def pods(document):
    """The templates of Pods in a manifest, each with its metadata and spec."""
    kind, spec = document["kind"], document["spec"] if document["kind"] in POD_OWNERS else None
    if kind in ("StatefulSet", "DaemonSet"):
        yield spec["template"]
    elif spec:
        jobs = spec["template"]["spec"] if kind == "ClusterTrainingRuntime" else spec
        yield from (job["template"]["spec"]["template"] for job in jobs["replicatedJobs"])


def containers(pod):
    yield from pod["spec"].get("initContainers", [])
    yield from pod["spec"]["containers"]


def environment(container):
    return {entry["name"]: entry.get("value") for entry in container.get("env", [])}


def seconds(text):
    [(number, unit)] = re.findall(r"^(\d+)(s|m|h)$", text)
    return int(number) * {"s": 1, "m": 60, "h": 3600}[unit]


def pod_faults(pod):
    spec = pod["spec"]
    context = spec.get("securityContext", {})
    if context.get("runAsNonRoot") is not True or not context.get("runAsUser"):
        yield "the Pod may run as root: runAsNonRoot and a runAsUser above 0 are missing"
    if context.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield "the Pod has no seccompProfile RuntimeDefault"
    if spec.get("automountServiceAccountToken") is not False:
        yield "the Pod mounts the token of its service account"
    if spec.get("enableServiceLinks") is not False:
        yield "variables of Services could pass for settings: enableServiceLinks is not false"
    for shared in ("hostPID", "hostIPC"):
        if spec.get(shared):
            yield f"the Pod has {shared}"
    volumes = {volume["name"] for volume in spec.get("volumes", [])} | pod.get("claims", set())
    mounted = {mount["name"] for container in containers(pod) for mount in container.get("volumeMounts", [])}
    if volumes != mounted:
        yield f"volumes and mounts differ: {sorted(volumes ^ mounted)}"
    yield from ending_faults(spec)
    for container in containers(pod):
        yield from (f"container {container['name']}: {fault}" for fault in container_faults(container, context))


def ending_faults(spec):
    """Whether Kubernetes waits for as long as the programs of a Pod take to end."""
    needed = 0
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        given = environment(container)
        drains = given.get("SHARDD_ON_SIGTERM") == "drain"
        if container["command"] == ["shardd", "serve"]:
            needed += seconds(given["SHARDD_GRACE"]) + END_SECONDS if drains else STOP_SECONDS
        needed += container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    waits = spec.get("terminationGracePeriodSeconds", 30)
    if waits < needed:
        yield f"terminationGracePeriodSeconds {waits} is less than the {needed} s that the Pod takes to end"


def container_faults(container, pod_context):
    context = container.get("securityContext", {})
    if context.get("allowPrivilegeEscalation") is not False or context.get("privileged"):
        yield "it may gain privileges"
    if context.get("readOnlyRootFilesystem") is not True:
        yield "its root file system is writable"
    if context.get("capabilities") != {"drop": ["ALL"]}:
        yield "it keeps capabilities"
    if context.get("runAsUser", pod_context.get("runAsUser")) == 0 or context.get("runAsNonRoot") is False:
        yield "it runs as root"
    resources = container.get("resources", {})
    if not {"cpu", "memory"} <= resources.get("requests", {}).keys() or "memory" not in resources.get("limits", {}):
        yield "it lacks requests of cpu and memory, or a limit of memory"
    if not re.search(r"(:(?!latest$)[\w.-]+|@sha256:[0-9a-f]{64})$", container["image"]):
        yield f"its image {container['image']} is not pinned to a version or a digest"
    yield from probe_faults(container)
    yield from setting_faults(container)


def probe_faults(container):
    ports = {port["name"] for port in container.get("ports", [])}
    scheme = "HTTPS" if environment(container).get("SHARDD_TLS") == "true" else "HTTP"
    probes = {name: container[name] for name in ("startupProbe", "livenessProbe", "readinessProbe") if name in container}
    if container["command"] == ["shardd", "serve"] and not {"startupProbe", "livenessProbe"} <= probes.keys():
        yield "a node has no startup or no liveness probe"
    for name, probe in probes.items():
        asked = probe["httpGet"]
        if asked["path"] not in PATHS:
            yield f"{name} asks for {asked['path']}, which nodes do not serve"
        if name != "readinessProbe" and asked["path"] == "/v1/ready":
            yield f"{name} would restart a node that fills its cache"
        if asked["port"] not in ports:
            yield f"{name} asks at port {asked['port']}, which the container lacks"
        if asked.get("scheme", "HTTP") != scheme:
            yield f"{name} speaks {asked.get('scheme', 'HTTP')} and the node {scheme}"


def setting_faults(container):
    """Whether the program knows the flags and variables, and Kubernetes the variables in values."""
    program = container["command"][0]
    flags, variables = PROGRAMS[program]
    # `kubectl exec` runs shardctl in the container of a node.
    if program == "shardd":
        variables = variables | PROGRAMS["shardctl"][1]
    for word in [*container["command"], *container.get("args", [])]:
        flag = word.split("=")[0]
        if len(flag) > 2 and flag.startswith("--") and flag not in flags:
            yield f"{program} has no flag {flag}"
    known = set()
    for entry in container.get("env", []):
        if entry["name"].startswith("SHARDD_") and entry["name"] not in variables:
            yield f"{program} does not read {entry['name']}"
        for name in re.findall(r"\$\((\w+)\)", str(entry.get("value", ""))):
            if name not in known:
                yield f"{entry['name']} needs {name}, which is not set before it"
        if entry["name"] in known:
            yield f"{entry['name']} is set twice"
        known.add(entry["name"])


def selects(selector, labels):
    return selector.items() <= labels.items()


def together_faults(documents):
    """Whether the manifests of a chart fit each other."""
    owners = [(document, template) for document in documents for template in pods(document)]
    services = [document for document in documents if document["kind"] == "Service"]
    for document, template in owners:
        name, labels = f"{document['kind']} {document['metadata']['name']}", template["metadata"]["labels"]
        if not selects(document["spec"]["selector"]["matchLabels"], labels):
            yield f"{name} does not select its Pods"
        pod = document["metadata"]["name"] + SUFFIX[document["kind"]]
        if len(pod) > NODE_NAME:
            yield f"{name}: {pod} is too long for the name of a node"
        if document["kind"] == "StatefulSet" and document["spec"]["serviceName"] not in {one["metadata"]["name"] for one in services}:
            yield f"{name} names a Service that is not there"
    for document in documents:
        name = f"{document['kind']} {document['metadata']['name']}"
        selected = None
        if document["kind"] == "Service":
            selected = document["spec"]["selector"]
        elif document["kind"] == "PodDisruptionBudget":
            selected = document["spec"]["selector"]["matchLabels"]
        elif document["kind"] == "NetworkPolicy":
            selected = document["spec"]["podSelector"]["matchLabels"]
        if selected is None:
            continue
        chosen = [template for _, template in owners if selects(selected, template["metadata"]["labels"])]
        if not chosen:
            yield f"{name} selects no Pod"
        for template in chosen:
            ports = {port["name"] for container in containers(template) for port in container.get("ports", [])}
            wanted = {port["targetPort"] for port in document["spec"].get("ports", [])} if document["kind"] == "Service" else set()
            if not wanted <= ports:
                yield f"{name} leads to a port that its Pods lack: {sorted(wanted - ports)}"
    yield from join_faults(owners, services)
    yield from monitor_faults(documents, services)


def join_faults(owners, services):
    """Whether the certificates of nodes have the names under which the manifests ask them."""
    namespace = {f"{service['metadata']['name']}": service for service in services}
    for document, template in owners:
        for container in containers(template):
            server = environment(container).get("SHARDD_SERVER") or ""
            host = re.sub(r"^https://|:7700$", "", server)
            if host.startswith(("$(", "[$(")) or not host:
                continue
            service = namespace.get(host.split(".")[0])
            if service is None:
                yield f"{document['metadata']['name']} asks {host}, which is no Service"
                continue
            for _, target in owners:
                if selects(service["spec"]["selector"], target["metadata"]["labels"]):
                    hosts = environment(target["spec"]["containers"][0])["SHARDD_TLS_HOSTS"].split(",")
                    if host not in hosts:
                        yield f"{document['metadata']['name']} asks {host}, which is not in SHARDD_TLS_HOSTS of the Pods there"


def monitor_faults(documents, services):
    for document in documents:
        if document["kind"] != "ServiceMonitor":
            continue
        chosen = [one for one in services if selects(document["spec"]["selector"]["matchLabels"], one["metadata"]["labels"])]
        if len(chosen) != 1 or "https" not in {port["name"] for port in chosen[0]["spec"]["ports"]}:
            yield "the ServiceMonitor does not select the one headless Service"
        if document["spec"]["endpoints"][0]["path"] not in PATHS:
            yield "the ServiceMonitor asks for a path that nodes do not serve"


def faults(documents):
    """Everything wrong with the manifests of a chart or an example."""
    is_chart = any(document["kind"] == "Service" for document in documents)
    for document in documents:
        name = f"{document['kind']} {document['metadata']['name']}"
        if is_chart and document["metadata"].get("namespace") != NAMESPACE:
            yield f"{name} is not in the namespace of the release"
        if document["kind"] == "ServiceAccount" and document.get("automountServiceAccountToken") is not False:
            yield f"{name} mounts its token"
        for template in pods(document):
            claims = {claim["metadata"]["name"] for claim in document["spec"].get("volumeClaimTemplates", [])}
            yield from (f"{name}: {fault}" for fault in pod_faults(template | {"claims": claims}))
    if is_chart:
        yield from together_faults(documents)
