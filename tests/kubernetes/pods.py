"""Runs Pods as a kubelet does, in runc: with the volumes, the variables, the probes and the safety of their manifests.

The network is that of the machine: each Pod has an address of loopback, and /etc/hosts in place of the DNS of Services. Seccomp
profiles and limits of memory are not applied.
"""

import http.client
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import time
from pathlib import Path

PROBE_SECONDS = 60


class Machine:
    """A machine with images, names and Secrets, in a folder of its own."""

    def __init__(self, folder, images):
        self.folder, self.images = folder, images
        self.names, self.secrets, self.pods = {}, {}, []

    def host_path(self, path):
        """The folder that stands for a path of the machine. As on one that is prepared, user 65532 owns it."""
        folder = self.folder / "host" / path.lstrip("/")
        if not folder.exists():
            folder.mkdir(parents=True)
            os.chown(folder, 65532, 65532)
        return folder

    def runc(self, *arguments, **options):
        return subprocess.run(["runc", "--root", self.folder / "runc", *arguments], **options)

    def stop_all(self):
        for pod in reversed(self.pods):
            for container in list(pod.running.values()):
                container.kill(signal.SIGKILL)


class Container:
    """A running container."""

    def __init__(self, machine, name, process, log):
        self.machine, self.name, self.process, self.log_file = machine, name, process, log

    def log(self):
        return self.log_file.read_text(errors="replace")

    def kill(self, number):
        if self.process.poll() is None:
            self.machine.runc("kill", self.name, str(int(number)), capture_output=True, check=False)
            if number == signal.SIGKILL:
                self.process.wait(timeout=PROBE_SECONDS)

    def run(self, *command):
        """What a command prints that `kubectl exec` would run in the container."""
        answer = self.machine.runc("exec", self.name, *command, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, f"{command} in {self.name}: {answer.stdout}{answer.stderr}"
        return answer.stdout


class Pod:
    """A Pod of a template, at an address."""

    def __init__(self, machine, name, template, address, claims=(), labels=(), host=None):
        self.machine, self.name, self.address, self.host = machine, name, address, host
        self.spec, self.labels = template["spec"], template["metadata"]["labels"] | dict(labels)
        # A Pod that is made again has the claims of the one before, and nothing else of it.
        self.uid = f"{name}.{len(machine.pods)}"
        self.folder = machine.folder / "pods" / self.uid
        self.running, self.exits, self.attempts = {}, {}, 0
        self.volumes = {claim: self.make_empty(machine.folder / "claims" / name / claim) for claim in claims}
        self.volumes |= {volume["name"]: self.volume(volume) for volume in self.spec["volumes"]}
        machine.pods.append(self)

    def make_empty(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        group = self.spec["securityContext"]["fsGroup"]
        os.chown(folder, 0, group)
        folder.chmod(0o2775)
        return folder

    def volume(self, volume):
        if "hostPath" in volume:
            return self.machine.host_path(volume["hostPath"]["path"])
        folder = self.make_empty(self.folder / "volumes" / volume["name"])
        if "secret" in volume:
            for key, text in self.machine.secrets[volume["secret"]["secretName"]].items():
                file = folder / key
                file.write_text(text)
                os.chown(file, 0, self.spec["securityContext"]["fsGroup"])
                file.chmod(volume["secret"]["defaultMode"])
        return folder

    def start(self):
        """Starts the containers in their order, each init container after the one before has ended, or has started if it is a
        sidecar."""
        for container in self.spec.get("initContainers", []):
            self.start_container(container)
            if container.get("restartPolicy") == "Always":
                self.wait_for(container, "startupProbe")
            else:
                code = self.wait(container["name"])
                assert code == 0, f"init container {container['name']} of {self.name} ended with {code}: {self.log(container['name'])}"
        for container in self.spec["containers"]:
            self.start_container(container)
            if "startupProbe" in container:
                self.wait_for(container, "startupProbe")
        return self

    def log(self, name):
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def named(self, name):
        [container] = [one for one in self.spec.get("initContainers", []) + self.spec["containers"] if one["name"] == name]
        return container

    def wait(self, name, seconds=PROBE_SECONDS):
        """The exit code of a container."""
        return self.running[name].process.wait(timeout=seconds)

    def restart(self, name):
        """Starts a container again that has ended, in the same Pod."""
        self.wait(name)
        self.start_container(self.named(name))

    def terminate(self, name):
        """SIGTERM, as kubelet sends it. Returns the seconds until the container has ended, and its exit code."""
        begun = time.monotonic()
        self.running[name].kill(signal.SIGTERM)
        code = self.wait(name, self.spec["terminationGracePeriodSeconds"])
        return time.monotonic() - begun, code

    def wait_for(self, container, probe):
        """Waits until a probe of a container succeeds. Starts the container again if it ends, as a kubelet does."""
        asked = container[probe]["httpGet"]
        [port] = [port["containerPort"] for port in container["ports"] if port["name"] == asked["port"]]
        until = time.monotonic() + PROBE_SECONDS
        while (status := self.get(asked["path"], port)) != 200:
            assert time.monotonic() < until, f"{probe} of {self.name}: {status}; {self.log(container['name'])}"
            if self.running[container["name"]].process.poll() is not None:
                time.sleep(1)
                self.start_container(container)
            time.sleep(0.1)

    def get(self, path, port):
        # As kubelet does, without looking at the certificate.
        trusting = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection(self.address, port, timeout=5, context=trusting)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except OSError as error:
            return str(error)
        finally:
            connection.close()

    def start_container(self, container):
        self.attempts += 1
        name = f"{self.uid}-{container['name']}-{self.attempts}"
        bundle = self.folder / name
        bundle.mkdir(parents=True)
        (bundle / "config.json").write_text(json.dumps(self.bundle(container, name)))
        log = self.folder / f"{container['name']}.log"
        with log.open("ab") as out:
            process = subprocess.Popen(["runc", "--root", self.machine.folder / "runc", "run", "--bundle", bundle, name],
                                       stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        self.running[container["name"]] = Container(self.machine, name, process, log)

    def bundle(self, container, name):
        """The configuration of a container for runc."""
        image = self.machine.images[re.sub(r"^.*/|[:@].*$", "", container["image"])]
        user, safety = self.spec["securityContext"]["runAsUser"], container["securityContext"]
        kept = [] if safety["capabilities"] == {"drop": ["ALL"]} else ["CAP_NET_BIND_SERVICE"]
        of_machine = {"/etc/hosts": self.hosts(), "/etc/resolv.conf": Path("/dev/null")}
        mounts = [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["nosuid", "nodev", "mode=1777", "size=64m"]},
            *({"destination": to, "type": "bind", "source": str(file), "options": ["bind", "ro"]} for to, file in of_machine.items()),
            *({"destination": mount["mountPath"], "type": "bind", "source": str(self.volumes[mount["name"]]),
               "options": ["rbind", "ro" if mount.get("readOnly") else "rw"]} for mount in container["volumeMounts"]),
        ]
        return {
            "ociVersion": "1.0.2",
            "root": {"path": str(image["rootfs"]), "readonly": safety["readOnlyRootFilesystem"]},
            "process": {
                "user": {"uid": user, "gid": self.spec["securityContext"]["runAsGroup"],
                         "additionalGids": [self.spec["securityContext"]["fsGroup"]]},
                "args": [*container["command"], *container.get("args", [])],
                "env": [*image["env"], *(f"{key}={value}" for key, value in self.environment(container).items())],
                "cwd": image["folder"],
                "noNewPrivileges": not safety["allowPrivilegeEscalation"],
                "capabilities": {kind: kept for kind in ("bounding", "effective", "permitted")},
            },
            "mounts": mounts,
            "linux": {"namespaces": [{"type": kind} for kind in ("pid", "ipc", "mount")], "cgroupsPath": f"/{self.machine.folder.name}-{name}"},
        }

    def hosts(self):
        file = self.folder / "hosts"
        file.write_text("".join(f"{address} {name}\n" for name, address in {"localhost": "127.0.0.1", **self.machine.names}.items()))
        return file

    def environment(self, container):
        found = {}
        for source in container.get("envFrom", []):
            found |= self.machine.secrets[source["secretRef"]["name"]]
        for entry in container.get("env", []):
            if "valueFrom" in entry:
                path = entry["valueFrom"]["fieldRef"]["fieldPath"]
                label = re.fullmatch(r"metadata\.labels\['(.*)'\]", path)
                fields = {"metadata.name": self.name, "status.podIP": self.address, "status.hostIP": self.host}
                found[entry["name"]] = self.labels[label[1]] if label else fields[path]
            else:
                found[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda name: found[name[1]], entry["value"])
        return found


def unpack(layout, to):
    """Unpacks an image. Returns its root file system, and the variables and the folder of its configuration."""
    index = json.loads((layout / "index.json").read_text())
    [manifest] = index["manifests"]
    tag = manifest["annotations"]["org.opencontainers.image.ref.name"]
    shutil.rmtree(to, ignore_errors=True)
    subprocess.run(["umoci", "unpack", "--image", f"{layout}:{tag}", to], check=True, capture_output=True)
    blob = lambda digest: json.loads((layout / "blobs" / digest.replace(":", "/")).read_text())
    config = blob(blob(manifest["digest"])["config"]["digest"])["config"]
    return {"rootfs": to / "rootfs", "env": config["Env"], "folder": config["WorkingDir"], "user": config["User"],
            "digest": manifest["digest"]}
