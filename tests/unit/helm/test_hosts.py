"""Workers on several hosts: groups of pods that find their first one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from services.worker.config import WorkerProgramConfig
from shared.config import load_config
from shared.engine.settings.ranks import POD_VARIABLE, placed_ranks
from tests.unit.helm.chart import CHART, NEWEST, Rendered, case_flags, env, helm, render
from tests.unit.helm.test_schemas import _validator

if TYPE_CHECKING:
    from shared.worker.config import WorkerConfig
    from tests.unit.helm.chart import Object

STATEFUL = ("--set", "pools.decode.leaderWorkerSet.enabled=false,listenHost=::")
#: Of `LeaderWorkerSetSpec` and below, version v1: what the operator's types have.
GROUP_FIELDS = {
    "": {"replicas", "leaderWorkerTemplate", "rolloutStrategy", "startupPolicy", "networkConfig"},
    "leaderWorkerTemplate": {"size", "restartPolicy", "workerTemplate", "leaderTemplate"},
    "rolloutStrategy": {"type", "rollingUpdateConfiguration"},
}


@pytest.fixture(scope="module")
def stateful() -> Rendered:
    return render(*case_flags("hosts"), *STATEFUL)


def config_of(container: Object, **labels: str) -> WorkerConfig:
    """What a pod's program reads, given what Kubernetes sets."""
    environ = {key: value or labels.get(key, "x") for key, value in env(container).items()}
    words = [word.replace("$(LWS_LEADER_ADDRESS)", "first.hosts") for word in container["args"][2:]]
    return load_config(WorkerProgramConfig, words, prog="test", environ=environ).worker


def test_pods_listen_where_they_are_told(stateful: Rendered) -> None:
    for group in stateful.of("StatefulSet", pool="decode"):
        [container] = group["spec"]["template"]["spec"]["containers"]
        assert config_of(container).host == "::"
    [router] = stateful.one("Deployment", component="router")["spec"]["template"]["spec"][
        "containers"
    ]
    assert env(router)["BATON_HOST"] == "::"


def test_a_worker_is_a_stateful_set_whose_pods_know_the_first(stateful: Rendered) -> None:
    groups = stateful.of("StatefulSet", pool="decode")
    assert [each["metadata"]["name"] for each in groups] == [
        "r-baton-decode-0",
        "r-baton-decode-1",
    ]
    assert not stateful.of("Deployment", pool="decode")
    service = stateful.one("Service", pool="decode")
    # The first pod is not ready before the others have come.
    assert service["spec"]["publishNotReadyAddresses"] is True
    for each in groups:
        spec = each["spec"]
        assert (spec["replicas"], spec["podManagementPolicy"]) == (2, "Parallel")
        assert spec["serviceName"] == service["metadata"]["name"]
        selected = service["spec"]["selector"].items()
        assert selected <= spec["template"]["metadata"]["labels"].items()
        [container] = spec["template"]["spec"]["containers"]
        assert field_of(container, POD_VARIABLE) == "metadata.name"
        ranks = config_of(container).ranks
        pods = [f"{each['metadata']['name']}-{n}" for n in range(2)]
        places = [placed_ranks(ranks, {POD_VARIABLE: pod}) for pod in pods]
        assert [each.node_rank for each in places] == [0, 1]
        first = f"{each['metadata']['name']}-0.{spec['serviceName']}.here.svc"
        assert {place.master_addr for place in places} == {first}
        assert places[0].size == 4
        # Both kinds of pod answer there.
        assert container["readinessProbe"]["httpGet"] == {"path": "/health", "port": "metrics"}
        errors = list(_validator(NEWEST, "apps/v1", "StatefulSet").iter_errors(each))
        assert not errors, errors[0].message


def field_of(container: Object, name: str) -> str:
    [found] = [each["valueFrom"] for each in container["env"] if each["name"] == name]
    return str(found["fieldRef"]["fieldPath"])


def test_an_operator_s_groups_have_its_fields_and_a_valid_pod(cases: dict[str, Rendered]) -> None:
    rendered = cases["hosts"]
    assert not rendered.of("StatefulSet", pool="decode")
    found = rendered.one("LeaderWorkerSet", pool="decode")
    spec = found["spec"]
    template = spec["leaderWorkerTemplate"]
    for name, fields in GROUP_FIELDS.items():
        assert (spec[name] if name else spec).keys() <= fields
    assert found["apiVersion"] == "leaderworkerset.x-k8s.io/v1"
    assert (spec["replicas"], template["size"]) == (2, 2)
    assert template["restartPolicy"] in ("RecreateGroupOnPodRestart", "None")
    assert spec["rolloutStrategy"]["rollingUpdateConfiguration"] == {
        "maxSurge": 1,
        "maxUnavailable": 0,
    }
    # Its Service has its own name.
    assert found["metadata"]["name"] not in {
        each["metadata"]["name"] for each in rendered.of("Service")
    }
    [container] = template["workerTemplate"]["spec"]["containers"]
    ranks = config_of(container, BATON_NODE_RANK="1").ranks
    assert (ranks.node_rank, ranks.master_addr) == (1, "first.hosts")
    label = "metadata.labels['leaderworkerset.sigs.k8s.io/worker-index']"
    assert field_of(container, "BATON_NODE_RANK") == label
    labels = template["workerTemplate"]["metadata"]["labels"]
    workload = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "x"},
        "spec": {"selector": {"matchLabels": labels}, "template": template["workerTemplate"]},
    }
    errors = list(_validator(NEWEST, "apps/v1", "Deployment").iter_errors(workload))
    assert not errors, errors[0].message


def test_ranks_of_hosts_reach_each_other_by_any_port(cases: dict[str, Rendered]) -> None:
    policy = cases["hosts"].one("NetworkPolicy", component="worker")["spec"]
    [_, workers, _] = policy["ingress"]
    assert "ports" not in workers
    assert "ports" not in policy["egress"][0]


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("nnodes=3",), "4 ranks are not divided evenly among 3 hosts"),
        (("nnodes=0",), "must be 1 or more"),
        (("nnodes=2,pools.decode.autoscaling.kind=hpa",), "autoscaling.kind must be none"),
        (("node_rank=1",), "node_rank"),
    ],
)
def test_groups_that_cannot_be_are_refused(flags: tuple[str, ...], reason: str) -> None:
    words = [f"pools.decode.settings.{each}" for each in flags]
    done = helm("template", "r", str(CHART), *case_flags("hosts"), "--set", ",".join(words))
    assert done.returncode
    assert reason in done.stderr


def test_an_old_kubernetes_takes_the_stateful_sets_of_hosts() -> None:
    rendered = render(*case_flags("hosts"), *STATEFUL, version="1.21.0")
    groups = rendered.of("StatefulSet", pool="decode")
    assert len(groups) == 2
    # A field from 1.22 on.
    assert all("minReadySeconds" not in each["spec"] for each in groups)
