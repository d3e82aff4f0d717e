"""Manifests and values that are broken on purpose, each with the words by which the checks have to name the fault."""

import copy

import render
import rules
import schemas


def find(documents, kind, name):
    [found] = [one for one in documents if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def pod(documents, name="shardd-node", kind="StatefulSet"):
    return find(documents, kind, name)["spec"]["template"]["spec"]


def node(documents):
    return pod(documents)["containers"][0]


def put(target, key, value):
    target[key] = value


def variable(container, name, value):
    [entry] = [entry for entry in container["env"] if entry["name"] == name]
    entry["value"] = value


# The break of manifests of the chart, its code, and the words of the fault.
MANIFESTS = [
    ("runAsNonRoot is gone", lambda all: pod(all)["securityContext"].pop("runAsNonRoot"), "may run as root"),
    ("the user is 0", lambda all: put(pod(all)["securityContext"], "runAsUser", 0), "may run as root"),
    ("a container runs as root", lambda all: put(node(all)["securityContext"], "runAsUser", 0), "it runs as root"),
    ("no seccomp profile", lambda all: pod(all)["securityContext"].pop("seccompProfile"), "seccompProfile"),
    ("a writable root", lambda all: node(all)["securityContext"].pop("readOnlyRootFilesystem"), "root file system"),
    ("capabilities stay", lambda all: node(all)["securityContext"].pop("capabilities"), "keeps capabilities"),
    ("a privileged container", lambda all: put(node(all)["securityContext"], "privileged", True), "gain privileges"),
    ("an init container may escalate", lambda all: pod(all)["initContainers"][0]["securityContext"].pop("allowPrivilegeEscalation"), "gain privileges"),
    ("a token is mounted", lambda all: pod(all).pop("automountServiceAccountToken"), "service account"),
    ("the account mounts its token", lambda all: find(all, "ServiceAccount", "shardd").pop("automountServiceAccountToken"), "mounts its token"),
    ("service links", lambda all: pod(all).pop("enableServiceLinks"), "enableServiceLinks"),
    ("no memory limit", lambda all: node(all)["resources"]["limits"].pop("memory"), "limit of memory"),
    ("image latest", lambda all: put(node(all), "image", "shardd:latest"), "not pinned"),
    ("Kubernetes waits too briefly", lambda all: put(pod(all), "terminationGracePeriodSeconds", 90), "terminationGracePeriodSeconds 90"),
    ("preStop takes the time of the drain", lambda all: put(node(all), "lifecycle", {"preStop": {"sleep": {"seconds": 10}}}), "terminationGracePeriodSeconds"),
    ("a probe of another path", lambda all: put(node(all)["readinessProbe"]["httpGet"], "path", "/healthz"), "do not serve"),
    ("liveness by readiness", lambda all: put(node(all)["livenessProbe"]["httpGet"], "path", "/v1/ready"), "would restart"),
    ("a probe without TLS", lambda all: node(all)["livenessProbe"]["httpGet"].pop("scheme"), "speaks HTTP"),
    ("a probe of another port", lambda all: put(node(all)["livenessProbe"]["httpGet"], "port", "http"), "asks at port http"),
    ("no liveness probe", lambda all: node(all).pop("livenessProbe"), "no liveness probe"),
    ("an unknown setting", lambda all: put(node(all)["env"][-1], "name", "SHARDD_CACHE"), "does not read SHARDD_CACHE"),
    ("an unknown flag", lambda all: put(node(all), "args", ["--drain"]), "has no flag --drain"),
    ("a variable before it is set", lambda all: node(all)["env"].pop(1), "needs POD_IP"),
    ("a mount without a volume", lambda all: pod(all)["volumes"].pop(0), "volumes and mounts differ"),
    ("a Service of other Pods", lambda all: put(find(all, "Service", "shardd")["spec"]["selector"], "app.kubernetes.io/name", "other"), "selects no Pod"),
    ("a Service of another port", lambda all: put(find(all, "Service", "shardd")["spec"]["ports"][0], "targetPort", "http"), "port that its Pods lack"),
    ("a budget of other Pods", lambda all: put(find(all, "PodDisruptionBudget", "shardd-node")["spec"]["selector"]["matchLabels"], "app.kubernetes.io/component", "api"), "selects no Pod"),
    ("a certificate without the name", lambda all: variable(pod(all, "shardd-first")["containers"][0], "SHARDD_TLS_HOSTS", "shardd"), "not in SHARDD_TLS_HOSTS"),
    ("a long name", lambda all: put(find(all, "StatefulSet", "shardd-node")["metadata"], "name", "n" * 36), "too long"),
    ("no headless Service", lambda all: all.remove(find(all, "Service", "shardd-peers")), "Service that is not there"),
    ("no namespace", lambda all: find(all, "Service", "shardd")["metadata"].pop("namespace"), "not in the namespace"),
    ("an unknown field", lambda all: put(pod(all), "nodeselector", {}), "nodeselector"),
    ("a number for a text", lambda all: variable(node(all), "SHARDD_LOG_LEVEL", True), "Kubernetes 1.37"),
]
# The same for custom resources, and the case or the example that has them.
CUSTOM = [
    ("daemonset", "Certificate", lambda one: one["spec"].pop("issuerRef"), "issuerRef"),
    ("daemonset", "Certificate", lambda one: put(one["spec"], "dnsName", "a"), "unknown field .spec.dnsName"),
    ("daemonset", "PrometheusRule", lambda one: one["spec"]["groups"][0].pop("name"), "name"),
    ("daemonset", "ServiceMonitor", lambda one: put(one["spec"]["endpoints"][0], "path", "/stats"), "do not serve"),
    ("jobset.yaml", "JobSet", lambda one: put(one["spec"], "replicatedJob", ["a"]), "unknown field .spec.replicatedJob"),
    ("jobset.yaml", "JobSet", lambda one: put(one["spec"]["replicatedJobs"][0], "replicas", "one"), "replicas"),
    ("jobset.yaml", "JobSet", lambda one: put(one["spec"]["replicatedJobs"][0]["template"]["spec"], "completion", 4), "unknown field"),
    ("sidecar.yaml", "JobSet", lambda one: put(one["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"], "terminationGracePeriodSeconds", 30), "less than the 40 s"),
    ("kubeflow.yaml", "TrainJob", lambda one: put(one["spec"]["trainer"], "nodes", 4), "unknown field .spec.trainer.nodes"),
    ("kubeflow.yaml", "ClusterTrainingRuntime", lambda one: put(one["spec"]["mlPolicy"], "numNodes", "four"), "numNodes"),
]
# Values that Helm has to refuse.
VALUES = [
    ({}, "/store/url"),
    (render.STORE | {"runAsUser": 0}, "/runAsUser"),
    (render.STORE | {"node": {}}, "node"),
    (render.STORE | {"drain": {"onSigterm": "wait"}}, "/drain/onSigterm"),
    (render.STORE | {"nodes": {"cacheSize": "64Gi"}}, "/nodes/cacheSize"),
    (render.STORE | {"nodes": {"kind": "DaemonSet"}}, "no claims"),
    (render.STORE | {"nodes": {"storage": {"type": "hostPath"}}}, "share a hostPath"),
    (render.STORE | {"nodes": {"hostNetwork": True}}, "share a machine"),
]


def faults(documents):
    yield from rules.faults(documents)
    for document in documents:
        yield from schemas.faults(document)


def unnoticed(charts, examples):
    """The breaks that the checks do not notice."""
    for name, damage, words in MANIFESTS:
        documents = copy.deepcopy(charts["defaults"])
        damage(documents)
        found = list(rules.faults(documents)) or [fault for one in documents for fault in schemas.faults(one)]
        if not any(words in fault for fault in found):
            yield f"{name}: {words!r} is not in {found}"
    for source, kind, damage, words in CUSTOM:
        documents = copy.deepcopy((charts | examples)[source])
        damage(next(one for one in documents if one["kind"] == kind))
        found = list(faults([one for one in documents if one["kind"] in (kind, "Service")]))
        if not any(words in fault for fault in found):
            yield f"{kind} of {source}: {words!r} is not in {found}"
    for values, words in VALUES:
        answer = render.run_helm(["template", "shardd"], values)
        if answer.returncode == 0 or words not in answer.stderr:
            yield f"{values}: {words!r} is not in {answer.stderr!r}"
