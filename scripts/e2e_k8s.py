"""Installs the chart on a real cluster, upgrades it under load, removes it: `make e2e-k8s`.

Needs `kubectl` and `helm`, a KUBECONFIG, and both images where the cluster finds them. Everything
happens in a namespace of its own. The load comes from a pod, through the router's Service, as a
port that is forwarded to one pod would end with that pod.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "helm"
LOAD = ROOT / "scripts" / "e2e_load.py"
NAMESPACE = "baton-e2e"
RELEASE = "baton"
LOADER = "baton-e2e-load"
KINDS = "all,secrets,configmaps,serviceaccounts,networkpolicies,poddisruptionbudgets"
#: What Kubernetes itself puts into each namespace.
OWN = {"serviceaccount/default", "configmap/kube-root-ca.crt"}
#: Small enough for one node with two cores.
SMALL = (
    "--set", "workers.settings.num_threads=1,workers.settings.kv_cache_memory_bytes=134217728",
    "--set", "workers.resources.requests.cpu=100m,router.resources.requests.cpu=100m",
    "--set", "router.drainGraceSeconds=60",
)  # fmt: skip


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


class Load:
    """Requests without a pause, from a pod; each failed one is counted."""

    def __init__(self, image: str) -> None:
        self._image = image

    @contextmanager
    def running(self) -> Iterator[None]:
        """Load while the block runs; afterwards nothing may have failed."""
        kubectl("delete", "pod", LOADER, "--ignore-not-found", "--wait")
        kubectl("apply", "-f", "-", text=json.dumps(self._pod()))
        kubectl("wait", "--for=condition=Ready", "pod", LOADER, "--timeout=60s")
        yield
        kubectl("exec", LOADER, "--", "touch", "/tmp/stop")
        kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod", LOADER,
                "--timeout=180s")  # fmt: skip
        result: dict[str, Any] = json.loads(kubectl("logs", LOADER).splitlines()[-1])
        print(f"  {result['num_ok']} requests, {len(result['failed'])} failed", flush=True)
        assert result["num_ok"] > 0, "the load asked nothing"
        assert not result["failed"], result["failed"][:5]
        assert result["num_texts"] == result["num_questions"], "an answer changed on the way"

    def _pod(self) -> dict[str, Any]:
        security = {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        key = {"secretKeyRef": {"name": f"{RELEASE}-api-keys", "key": "client-key"}}
        container = {
            "name": "load",
            "image": self._image,
            "command": ["/opt/venv/bin/python", "-c", LOAD.read_text()],
            "env": [
                {"name": "URL", "value": f"http://{RELEASE}-router-pydoc:8000/v1/completions"},
                {"name": "BATON_API_KEY", "valueFrom": key},
            ],
            "securityContext": security,
            "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": LOADER},
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "securityContext": {
                    "runAsNonRoot": True,
                    "runAsUser": 10001,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [container],
                "volumes": [{"name": "tmp", "emptyDir": {}}],
            },
        }


def left_behind() -> Sequence[str]:
    """What the namespace still has."""
    found = kubectl("get", KINDS, "-o", "name", quiet=True).split()
    tokens = "secret/default-token-"
    return [name for name in found if name not in OWN and not name.startswith(tokens)]


def wait_until_gone(seconds: float = 180) -> None:
    """Pods take their grace period to end."""
    deadline = time.monotonic() + seconds
    while (left := left_behind()) and time.monotonic() < deadline:
        time.sleep(2)
    assert not left, f"left behind: {left}"
    print("  nothing is left behind", flush=True)


def upgrade(flags: Sequence[str], changed: str) -> None:
    """Change one component's pods, and wait until only new ones serve."""
    helm("upgrade", RELEASE, str(CHART), *flags, "--reuse-values", "--set", changed,
         "--wait", "--timeout", "10m")  # fmt: skip


def try_release(flags: Sequence[str], load: Load) -> None:
    """From install to uninstall."""
    helm("lint", "--strict", str(CHART))
    helm("install", RELEASE, str(CHART), *flags, "--dry-run=server")
    helm("install", RELEASE, str(CHART), *flags, "--wait", "--timeout", "10m")
    print(helm("test", RELEASE))
    with load.running():
        for component in ("router", "pools.prefill", "pools.decode"):
            upgrade((), f"{component}.podAnnotations.e2e=new")
        kubectl("rollout", "restart", f"statefulset/{RELEASE}-redis")
        kubectl("rollout", "status", f"statefulset/{RELEASE}-redis", "--timeout=120s")
    kubectl("delete", "pod", LOADER, "--wait")
    helm("uninstall", RELEASE, "--wait")
    wait_until_gone()


def main() -> int:
    """Exit code 0 if all went well; otherwise an exception says what did not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--router-image", default="baton-router:local")
    parser.add_argument("--worker-image", default="baton-worker:local")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="only ask the API server whether it would take the objects of every case in helm/ci",
    )
    options, more = parser.parse_known_args()
    flags = [*SMALL, *_image("router", options.router_image)]
    flags += [*_image("worker", options.worker_image), *more]
    kubectl("create", "namespace", NAMESPACE)
    try:
        if options.dry_run:
            # A pod is taken only if its account is there.
            for name in ("default", RELEASE):
                account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
                kubectl("apply", "-f", "-", text=json.dumps(account))
            for values in sorted((CHART / "ci").glob("*-values.yaml")):
                try_objects(values)
        else:
            try_release(flags, Load(options.router_image))
    except BaseException:
        print(kubectl("get", "pods,events", "-o", "wide"), file=sys.stderr)
        raise
    finally:
        kubectl("delete", "namespace", NAMESPACE, "--wait=false")
    return 0


def try_objects(values: Path) -> None:
    """Every object of one case, as the API server checks it, save those of operators."""
    words = ("template", RELEASE, str(CHART), "-f", str(values), "--kube-version", _version())
    text = helm(*words)
    custom = ("cert-manager.io/", "keda.sh/", "monitoring.coreos.com/")
    objects = [
        part
        for part in text.split("\n---\n")
        if "\nkind: " in f"\n{part}" and not any(f"apiVersion: {group}" in part for group in custom)
    ]
    kubectl("apply", "--dry-run=server", "-f", "-", text="\n---\n".join(objects))


def _version() -> str:
    version = json.loads(run("kubectl", "version", "-o", "json", quiet=True))["serverVersion"]
    return str(version["gitVersion"]).partition("+")[0].partition("-")[0]


def _image(name: str, image: str) -> Sequence[str]:
    repository, _, tag = image.rpartition(":")
    return ("--set", f"image.{name}.repository={repository},image.{name}.tag={tag}")


if __name__ == "__main__":
    sys.exit(main())
