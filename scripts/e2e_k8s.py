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
from typing import TYPE_CHECKING

from scripts.e2e_k8s_cluster import (
    NAMESPACE,
    helm,
    helm_refuses,
    kubectl,
    own_namespace,
    pods,
    server_version,
    wait_until_gone,
)
from scripts.e2e_k8s_load import Load, right_answers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "helm"
CASES = sorted((CHART / "ci").glob("*-values.yaml"))
RELEASE = "baton"
#: Kinds that are there only with an operator.
CUSTOM = ("cert-manager.io/", "keda.sh/", "monitoring.coreos.com/")
#: Small enough for one node with two cores. In float32 an answer's tokens do not depend on which
#: others are computed beside it, and no prompt is too short for a prefill worker.
SMALL = (
    "--set", "workers.settings.num_threads=1,workers.settings.kv_cache_memory_bytes=134217728",
    "--set", "workers.settings.dtype=float32,pools.decode.settings.local_prefill_threshold=0",
    "--set", "workers.resources.requests.cpu=100m,router.resources.requests.cpu=100m",
    "--set", "router.drainGraceSeconds=120",
)  # fmt: skip
TIMEOUT = ("--wait", "--timeout", "15m")
#: Values that nobody may give, and what the refusal must name.
REFUSED = {
    "pools.decode.replica=2": "replica",
    "workers.settings.max_num_seq=8": "max_num_seq",
    "models.pydoc.source.type=s3": "models.pydoc.source.type",
}
#: What an upgrade of each component changes, so that its pods are made anew.
CHANGES = {
    "router": "router.podAnnotations.e2e=new",
    "prefill": "pools.prefill.podAnnotations.e2e=new",
    "decode": "pools.decode.podAnnotations.e2e=new",
    "redis": "redis.maxmemory=200mb",
}
SELECTORS = {
    "router": ("app.kubernetes.io/component=router",),
    "prefill": ("baton.dev/pool=prefill",),
    "decode": ("baton.dev/pool=decode",),
    "redis": ("app.kubernetes.io/component=redis",),
}


def try_release(flags: Sequence[str], image: str) -> None:
    """From install to uninstall."""
    for values in CASES:
        helm("lint", "--strict", str(CHART), "-f", str(values))
    for value, named in REFUSED.items():
        helm_refuses(named, "install", RELEASE, str(CHART), "--dry-run=server", "--set", value)
    helm("install", RELEASE, str(CHART), *flags, "--dry-run=server")
    helm("install", RELEASE, str(CHART), *flags, *TIMEOUT)
    ask_as_test()
    load = Load(image, f"{RELEASE}-router-pydoc", f"{RELEASE}-api-keys", right_answers())
    for component, change in CHANGES.items():
        with load.running(f"upgrade of {component}"), replacing(component):
            helm("upgrade", RELEASE, str(CHART), "--reuse-values", "--set", change, *TIMEOUT)
    with load.running("rollback of everything at once"), replacing(*CHANGES):
        helm("rollback", RELEASE, "1", *TIMEOUT)
    helm("uninstall", RELEASE, "--wait")
    wait_until_gone()


def ask_as_test() -> None:
    """`helm test`. Its pod is gone once it succeeded, so its words are read beside it."""
    pod = f"{RELEASE}-test-pydoc"
    command = ["helm", "-n", NAMESPACE, "test", RELEASE, "--timeout", "5m"]
    print(f"$ {' '.join(command)}", flush=True)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as testing:
        said = ""
        while testing.poll() is None:
            said = said_by(pod) or said
            time.sleep(1)
        assert testing.stdout is not None
        print(testing.stdout.read())
    print("\n".join(f"  {line}" for line in said.splitlines()), flush=True)
    assert testing.returncode == 0, "helm test failed"


def said_by(pod: str) -> str:
    """What a pod's containers have said so far; nothing if there is no such pod."""
    command = ["kubectl", "-n", NAMESPACE, "logs", pod, "--all-containers", "--prefix"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@contextmanager
def replacing(*components: str) -> Iterator[None]:
    """At the end of the block each pod that was there is gone, and none that is new failed.

    Raises:
        AssertionError: a pod is still the old one, or was started again.
    """
    before = {component: pods(*SELECTORS[component]) for component in components}
    kept = [pod for component in SELECTORS.keys() - before for pod in pods(*SELECTORS[component])]
    restarts = num_restarts()
    yield
    for component, old in before.items():
        # A StatefulSet gives a new pod the name of the old one.
        if component != "redis":
            kubectl("wait", "--for=delete", *old, "--timeout=180s")
    for component in SELECTORS.keys() - before:
        assert set(pods(*SELECTORS[component])) <= set(kept), f"{component} was replaced, too"
    assert num_restarts() <= restarts, "a container was started again"


def num_restarts() -> int:
    """Of all containers."""
    path = "{.items[*].status.containerStatuses[*].restartCount}"
    return sum(map(int, kubectl("get", "pods", "-o", f"jsonpath={path}", quiet=True).split()))


def try_objects(values: Path) -> None:
    """Every object of one case, as the API server checks it, save those of operators."""
    words = ("template", RELEASE, str(CHART), "-f", str(values), "--kube-version", server_version())
    objects = [
        part
        for part in helm(*words).split("\n---\n")
        if "\nkind: " in f"\n{part}" and not any(f"apiVersion: {group}" in part for group in CUSTOM)
    ]
    kubectl("apply", "--dry-run=server", "-f", "-", text="\n---\n".join(objects))


def try_every_object() -> None:
    """Of every case in helm/ci. A pod is taken only if its account is there."""
    for name in ("default", RELEASE):
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
        kubectl("apply", "-f", "-", text=json.dumps(account))
    for values in CASES:
        try_objects(values)


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
    with own_namespace():
        if options.dry_run:
            try_every_object()
        else:
            try_release(flags, options.router_image)
    return 0


def _image(name: str, image: str) -> Sequence[str]:
    repository, _, tag = image.rpartition(":")
    return ("--set", f"image.{name}.repository={repository},image.{name}.tag={tag}")


if __name__ == "__main__":
    sys.exit(main())
