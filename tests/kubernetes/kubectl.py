#!/usr/bin/env python3
"""Stands for kubectl in the test of server/kubernetes/bootstrap: what that script calls, over a folder of Secrets and a Pod in runc.

The folder is $KUBECTL_STATE: `pod` has the name of the Pod, `exec` the command that runs a program in it, and `secrets` a file for
each Secret.
"""

import json
import os
import sys
from pathlib import Path

state = Path(os.environ["KUBECTL_STATE"])
arguments = sys.argv[1:]
assert arguments[:2] == ["--namespace", "ml"], arguments
match arguments[2:]:
    case ["get", "pods", "--selector", "app.kubernetes.io/instance=shardd,app.kubernetes.io/component=first", "--output", "jsonpath={.items[*].metadata.name}"]:
        print((state / "pod").read_text(), end="")
    case ["wait", "--for=condition=Ready", "--timeout=300s", pod] if pod == "pod/" + (state / "pod").read_text():
        pass
    case ["exec", pod, "--container", "shardd", "--", *command] if pod == (state / "pod").read_text():
        inside = json.loads((state / "exec").read_text())
        os.execvp(inside[0], [*inside, *command])
    case ["get", "secret", name, "--output", "name"]:
        sys.exit(not (state / "secrets" / name).exists())
    case ["create", "--filename", "-"]:
        secret = json.load(sys.stdin)
        assert (secret["apiVersion"], secret["kind"]) == ("v1", "Secret"), secret
        name = secret["metadata"]["name"]
        (state / "secrets" / name).write_text(json.dumps(secret["stringData"]))
        print(f"secret/{name} created")
    case other:
        sys.exit(f"kubectl.py does not know {other}")
