"""The cluster that `e2e_k8s.py` works on: `kubectl` and `helm` in a namespace of the script's own.

Knows nothing of Baton.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

NAMESPACE = "baton-e2e"
#: From 1.23 on a cluster refuses pods that are not "restricted" there.
LABELS = {"pod-security.kubernetes.io/enforce": "restricted"}
#: Of compiled kernels, if a folder of the node is given for them.
CACHE = "baton-e2e-cache"
#: What Kubernetes itself puts into each namespace, and what only tells of other objects.
OWN = {"serviceaccount/default", "configmap/kube-root-ca.crt", f"persistentvolumeclaim/{CACHE}"}
OWN_PREFIXES = ("secret/default-token-", "event/", "event.events.k8s.io/")


def run(*command: str, text: str | None = None, quiet: bool = False) -> str:
    """Run a command; returns what it says.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    if not quiet:
        print(f"$ {' '.join(command)}", flush=True)
    started_at = time.monotonic()
    done = subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True)
    if not quiet:
        print(f"  {time.monotonic() - started_at:.1f} s", flush=True)
    return done.stdout


def kubectl(*words: str, text: str | None = None, quiet: bool = False) -> str:
    """In the script's own namespace."""
    return run("kubectl", "-n", NAMESPACE, *words, text=text, quiet=quiet)


def helm(*words: str) -> str:
    """In the script's own namespace."""
    return run("helm", "-n", NAMESPACE, *words)


def helm_refuses(named: str, *words: str) -> None:
    """It must fail and say `named`; else AssertionError."""
    command = ["helm", "-n", NAMESPACE, *words]
    print(f"$ {' '.join(command)}", flush=True)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0, "Helm took it"
    assert named in done.stderr, done.stderr
    print("\n".join(f"  {line}" for line in done.stderr.splitlines()), flush=True)


def helm_test(release: str, *names: str) -> None:
    """`helm test`. Pods are gone once they have succeeded, so their words are read meanwhile.

    Raises:
        AssertionError: it failed.
    """
    command = ["helm", "-n", NAMESPACE, "test", release, "--hide-notes", "--timeout", "5m"]
    print(f"$ {' '.join(command)}", flush=True)
    said = dict.fromkeys(names, "")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as testing:
        while testing.poll() is None:
            for name in names:
                said[name] = said[name] or _followed(name)
        assert testing.stdout is not None
        print(testing.stdout.read(), *said.values(), sep="\n", flush=True)
    assert testing.returncode == 0, "helm test failed"


def _followed(pod: str) -> str:
    """What a pod says until it ends; nothing if it does not run yet."""
    words = ("logs", pod, "--follow", "--all-containers", "--prefix")
    command = ["kubectl", "-n", NAMESPACE, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@contextmanager
def own_namespace() -> Iterator[None]:
    """Is there while the block runs. If it fails, pods, events and last lines are shown."""
    labels = {"name": NAMESPACE, "labels": LABELS}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": labels}
    run("kubectl", "create", "-f", "-", text=json.dumps(namespace))
    try:
        yield
    except BaseException:
        for words in (("pods", "-o", "wide"), ("events", "--sort-by=.lastTimestamp")):
            print(kubectl("get", *words), file=sys.stderr)
        for name in kubectl("get", "pods", "-o", "name").split():
            command = ["kubectl", "-n", NAMESPACE, "logs", name, "--all-containers", "--tail=20"]
            subprocess.run(command, stdout=sys.stderr, check=False)
        raise
    finally:
        run("kubectl", "delete", "namespace", NAMESPACE, "--wait=false")


@contextmanager
def kernel_cache(folder: Path) -> Iterator[Sequence[str]]:
    """Claim a folder of the node for compiled kernels; yields the chart's flags for it."""
    size, access = {"storage": "2Gi"}, {"accessModes": ["ReadWriteMany"], "storageClassName": CACHE}
    volume = {"capacity": size, "hostPath": {"path": str(folder)}, **access}
    claim = {"resources": {"requests": size}, "volumeName": CACHE, **access}
    for kind, spec in (("PersistentVolume", volume), ("PersistentVolumeClaim", claim)):
        content = {"apiVersion": "v1", "kind": kind, "metadata": {"name": CACHE}, "spec": spec}
        kubectl("apply", "-f", "-", text=json.dumps(content))
    try:
        yield ("--set", f"workers.cacheClaim={CACHE}")
    finally:
        run("kubectl", "delete", "persistentvolume", CACHE, "--wait=false")


def pods(*selector: str) -> Sequence[str]:
    """Names of the pods that have these labels, in the form `pod/NAME`."""
    return kubectl("get", "pods", "-o", "name", "-l", ",".join(selector), quiet=True).split()


def pod_uids(*selector: str) -> set[str]:
    """Return the UIDs of the pods with these labels: a StatefulSet uses a pod's name again."""
    path = "jsonpath={.items[*].metadata.uid}"
    return set(kubectl("get", "pods", "-o", path, "-l", ",".join(selector), quiet=True).split())


def left_behind() -> Sequence[str]:
    """Whatever the namespace still has, of every kind that the cluster knows."""
    kinds = run(
        "kubectl", "api-resources", "--namespaced", "--verbs=list", "-o", "name", quiet=True
    )
    # What old clusters show under this group they show under its new one, too.
    wanted = [kind for kind in kinds.split() if not kind.endswith(".extensions")]
    found = kubectl("get", ",".join(wanted), "-o", "name", quiet=True).split()
    return [name for name in found if name not in OWN and not name.startswith(OWN_PREFIXES)]


def wait_until_gone(seconds: float = 180) -> None:
    """Pods take their grace period to end."""
    deadline = time.monotonic() + seconds
    while (left := left_behind()) and time.monotonic() < deadline:
        time.sleep(2)
    assert not left, f"left behind: {left}"
    print("  nothing is left behind", flush=True)


def server_version() -> str:
    """As `helm template --kube-version` takes it."""
    version = json.loads(run("kubectl", "version", "-o", "json", quiet=True))["serverVersion"]
    return str(version["gitVersion"]).partition("+")[0].partition("-")[0]
