"""Installs the chart on a real cluster, upgrades it under load, removes it: `make e2e-k8s`.

Needs `kubectl` and `helm`, a KUBECONFIG, and both images where the cluster finds them. Everything
happens in a namespace of its own. The load comes from a pod, through the router's Service, as a
port that is forwarded to one pod would end with that pod.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.e2e.certificates import given_certificates
from scripts.e2e.follower import Follower
from scripts.e2e.kubernetes import (
    helm,
    helm_refuses,
    helm_test,
    kernel_cache,
    kubectl,
    own_namespace,
    pod_uids,
    pods,
    server_version,
    wait_until_gone,
)
from scripts.e2e.load_pod import Load, right_answers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "helm"
CASES = sorted((CHART / "ci").glob("*-values.yaml"))
RELEASE = "baton"
TEST_POD = f"{RELEASE}-test-pydoc"
#: Kinds that are there only with an operator.
CUSTOM = ("cert-manager.io/", "keda.sh/", "leaderworkerset.x-k8s.io/", "monitoring.coreos.com/")
#: Small enough for one node with two cores. In float32 an answer's tokens do not depend on which
#: others are computed beside it; no prompt is too short for a prefill worker; and workers have too
#: little grace for the longest answers, which must go on elsewhere.
SMALL = (
    "--set", "workers.settings.num_threads=1,workers.settings.kv_cache_memory_bytes=134217728",
    "--set", "workers.settings.dtype=float32,pools.decode.settings.local_prefill_threshold=0",
    "--set", "workers.resources.requests.cpu=100m,router.resources.requests.cpu=100m",
    "--set", "router.drainGraceSeconds=120,workers.drainGraceSeconds=3",
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
#: Prefill workers of one rank hand over to decode workers of two.
RANKS = (
    "--set", "pools.prefill.replicas=2,pools.decode.settings.tensor_parallel_size=2",
)  # fmt: skip
#: Decode workers are groups of two pods, a rank in each.
HOSTS = (*RANKS, "--set", "pools.decode.settings.nnodes=2")
#: A planner that needs no minutes, and may want no worker at all; twelve sequences are too many for
#: one worker.
PLANNER = (
    "--set", "router.settings.planner=act,router.settings.planner_max_workers=4",
    "--set", "workers.settings.max_num_seqs=8",
    "--set", "router.settings.planner_min_prefill=0,router.settings.planner_min_decode=0",
    "--set", "router.settings.planner_startup_s=20,router.settings.planner_cooldown_s=15",
    "--set", "router.settings.worker_wait_s=300,router.settings.open_metrics=true",
)  # fmt: skip
#: The same checkpoint under another name, with workers of its own: values of the chart.
SECOND_MODEL = {
    "models.second.source": {
        "type": "init",
        "command": ["cp", "-rT", "/opt/baton/models/pydoc/checkpoint", "$(MODEL_DIR)"],
    },
    "pools.prefill.model": "pydoc",
    "pools.decode.model": "pydoc",
    "pools.second-prefill": {"role": "prefill", "model": "second"},
    "pools.second-decode": {"role": "decode", "model": "second"},
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
    helm_test(RELEASE, TEST_POD)
    load = Load(image, f"{RELEASE}-router-pydoc", f"{RELEASE}-api-keys", right_answers())
    for component, change in CHANGES.items():
        with load.running(f"upgrade of {component}"), replacing(component):
            helm("upgrade", RELEASE, str(CHART), "--reuse-values", "--set", change, *TIMEOUT)
    with load.running("rollback of everything at once"), replacing(*CHANGES):
        helm("rollback", RELEASE, "1", *TIMEOUT)
    helm("uninstall", RELEASE, "--wait")
    wait_until_gone()


def try_ranks(flags: Sequence[str], image: str) -> None:
    """Decode workers of two ranks are replaced under load, then become workers of one again."""
    helm("install", RELEASE, str(CHART), *flags, *RANKS, *TIMEOUT)
    load = Load(image, f"{RELEASE}-router-pydoc", f"{RELEASE}-api-keys", right_answers())
    same_size = CHANGES["decode"]
    one_rank = "pools.decode.settings.tensor_parallel_size=1"
    for what, change in (("of two ranks", same_size), ("from two ranks to one", one_rank)):
        with load.running(f"upgrade of decode {what}"), replacing("decode"):
            helm("upgrade", RELEASE, str(CHART), "--reuse-values", "--set", change, *TIMEOUT)
    helm("uninstall", RELEASE, "--wait")
    wait_until_gone()


def try_hosts(flags: Sequence[str], image: str) -> None:
    """A decode worker on two pods is replaced under load, then loses its second pod."""
    group = f"{RELEASE}-decode-0"
    helm("install", RELEASE, str(CHART), *flags, *HOSTS, *TIMEOUT)
    load = Load(image, f"{RELEASE}-router-pydoc", f"{RELEASE}-api-keys", right_answers())
    first = pod_uids(*SELECTORS["decode"])
    change = CHANGES["decode"]
    with load.running("upgrade of a worker on two pods"):
        helm("upgrade", RELEASE, str(CHART), "--reuse-values", "--set", change, *TIMEOUT)
    second = pod_uids(*SELECTORS["decode"])
    assert len(first) == len(second) == 2, (first, second)
    assert not first & second, "a pod was not replaced"
    with load.running("loss of a worker's second pod"):
        kubectl("delete", f"pod/{group}-1", "--grace-period=0", "--force")
        kubectl("rollout", "status", f"statefulset/{group}", "--timeout=600s")
    assert len(second & pod_uids(*SELECTORS["decode"])) == 1, "the first pod stays, a new one comes"
    helm_test(RELEASE, TEST_POD)
    helm("uninstall", RELEASE, "--wait")
    wait_until_gone()


def try_planner(flags: Sequence[str], image: str) -> None:
    """Workers come and go as the planner wants them, under load; none stay, and they come back."""
    router = f"{RELEASE}-router-pydoc"
    helm("install", RELEASE, str(CHART), *flags, *PLANNER, *TIMEOUT)
    load = Load(image, router, f"{RELEASE}-api-keys", right_answers())
    with Follower(RELEASE, router) as follower:
        with load.running("load for more workers", num_clients=4):
            follower.wait_until(
                "more workers", lambda wanted, run: wanted == run and sum(run.values()) >= 3, 300
            )
        with load.running("light load", num_clients=1, pause_s=4):
            follower.wait_until(
                "fewer workers", lambda wanted, run: wanted == run and sum(run.values()) == 2, 300
            )
        follower.wait_until("no worker", lambda wanted, run: not any(run.values()), 600)
        with load.running("load without a worker"):
            follower.wait_until(
                "workers again", lambda wanted, run: wanted == run and all(run.values()), 300
            )
        print(f"  wanted, by the second: {follower.history}", flush=True)
    helm("uninstall", RELEASE, "--wait")
    wait_until_gone()


def try_two_models_with_tls(flags: Sequence[str], _image: str) -> None:
    """A second model comes by a command; nobody gets in without a certificate."""
    values = ["--set", "tls.enabled=true,tls.requireClientCertificates=true"]
    for name, value in SECOND_MODEL.items():
        values += ["--set-json", f"{name}={json.dumps(value)}"]
    hosts = [f"{RELEASE}-{name}" for name in ("router-pydoc", "router-second", "redis")]
    with given_certificates(RELEASE, hosts=hosts):
        helm("install", RELEASE, str(CHART), *flags, *values, *TIMEOUT)
        helm_test(RELEASE, TEST_POD, f"{RELEASE}-test-second")
        helm("uninstall", RELEASE, "--wait")
    wait_until_gone()


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


#: By name, in their order: the chart's flags and the router's image.
TRIALS: Mapping[str, Callable[[Sequence[str], str], None]] = {
    "release": try_release,
    "ranks": try_ranks,
    "hosts": try_hosts,
    "planner": try_planner,
    "models": try_two_models_with_tls,
}


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
    parser.add_argument(
        "--only",
        action="append",
        choices=TRIALS,
        help="this trial; may be given more than once",
    )
    parser.add_argument(
        "--cache-folder",
        type=Path,
        metavar="PATH",
        help="a folder of the node, which user 10001 may write, for compiled kernels; without it "
        "each pod compiles them",
    )
    options, more = parser.parse_known_args()
    flags = [*SMALL, *_image("router", options.router_image)]
    flags += [*_image("worker", options.worker_image), *more]
    folder = options.cache_folder
    with own_namespace(), kernel_cache(folder) if folder else nullcontext(()) as cache:
        flags += cache
        for name, trial in TRIALS.items():
            if not options.dry_run and name in (options.only or TRIALS):
                trial(flags, options.router_image)
        try_every_object()
    return 0


def _image(name: str, image: str) -> Sequence[str]:
    repository, _, tag = image.rpartition(":")
    return ("--set", f"image.{name}.repository={repository},image.{name}.tag={tag}")


if __name__ == "__main__":
    sys.exit(main())
