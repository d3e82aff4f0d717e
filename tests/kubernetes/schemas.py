"""Validates manifests: those of Kubernetes by its published schemas, custom resources by the models of their clients."""

import importlib

import kubernetes_validate

VERSIONS = ["1.35", "1.36", "1.37"]
# The models of custom resources, by group and version.
MODELS = {
    "cert-manager.io/v1": "cloudcoil.models.cert_manager.v1",
    "monitoring.coreos.com/v1": "cloudcoil.models.prometheus_operator.v1",
    "jobset.x-k8s.io/v1alpha2": "kubeflow_trainer_api.models",
    "trainer.kubeflow.org/v1alpha1": "kubeflow_trainer_api.models",
}
PREFIXES = {"jobset.x-k8s.io/v1alpha2": "JobsetV1alpha2", "trainer.kubeflow.org/v1alpha1": "TrainerV1alpha1"}


def faults(document):
    """The faults of a manifest."""
    if document["apiVersion"] in MODELS:
        by_its_model = list(by_model(document))
        yield from by_its_model
        for name, spec in jobs(document) if not by_its_model else []:
            yield from by_kubernetes({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec})
    else:
        yield from by_kubernetes(document)


def jobs(document):
    """The Jobs that JobSet makes of a manifest."""
    spec = document["spec"]
    if document["kind"] == "ClusterTrainingRuntime":
        spec = spec["template"]["spec"]
    for job in spec.get("replicatedJobs", []) if document["kind"] in ("JobSet", "ClusterTrainingRuntime") else []:
        yield job["name"], job["template"]["spec"]


def by_kubernetes(document):
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"Kubernetes {version}: {'.'.join(map(str, error.path))}: {error.message}"


def by_model(document):
    group, kind = document["apiVersion"], document["kind"]
    try:
        model = getattr(importlib.import_module(MODELS[group]), PREFIXES.get(group, "") + kind)
    except AttributeError:
        yield f"{group} has no kind {kind}"
        return
    try:
        parsed = model.from_dict(document) if hasattr(model, "from_dict") else model.model_validate(document)
    except ValueError as error:
        yield f"{group} {kind}: {error}"
        return
    # Models leave out the fields that they do not know.
    kept = parsed.to_dict() if hasattr(model, "from_dict") else parsed.model_dump(by_alias=True, exclude_unset=True)
    yield from (f"{group} {kind}: unknown field {path}" for path in lost(document, kept, ""))


def lost(given, kept, path):
    """The paths of the fields that are given and not kept."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            if key in kept:
                yield from lost(value, kept[key], f"{path}.{key}")
            elif value not in (None, {}, []):
                yield f"{path}.{key}"
    elif isinstance(given, list) and isinstance(kept, list):
        for number, (one, other) in enumerate(zip(given, kept)):
            yield from lost(one, other, f"{path}[{number}]")
