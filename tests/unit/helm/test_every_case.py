"""What holds whatever the values say."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from services.router.config import RouterConfig
from services.worker.config import WorkerProgramConfig
from shared.config import load_config
from tests.unit.helm.chart import CASES, CHART, CUSTOM, Rendered, case_flags, containers, env, helm

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.helm.chart import Object

CONFIGS = {"router": RouterConfig, "prefill": WorkerProgramConfig, "decode": WorkerProgramConfig}


@pytest.mark.parametrize("name", CASES)
def test_lint_is_strict_and_content(name: str) -> None:
    done = helm("lint", "--strict", str(CHART), *case_flags(name))
    assert done.returncode == 0, done.stdout


def test_every_template_has_one_kind_of_object() -> None:
    for path in (CHART / "templates").rglob("*.yaml"):
        kinds = re.findall(r"^kind:", path.read_text(), re.MULTILINE)
        assert len(kinds) == 1, f"{path.name} has {len(kinds)} objects"
        assert len(path.read_text().splitlines()) <= 110, f"{path.name} has grown too long"


def test_no_two_objects_have_the_same_name(case: Rendered) -> None:
    names = [(each["kind"], each["metadata"]["name"]) for each in case.objects]
    assert len(set(names)) == len(names)


def test_pods_fulfil_pod_security_restricted(case: Rendered) -> None:
    """kubernetes.io/docs/concepts/security/pod-security-standards, and a read-only root."""
    for name, pod in case.pods():
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True, name
        assert security["runAsUser"] > 0, name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not any(pod.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")), name
        for container in containers(pod):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, f"{name}: {container['name']}"
            assert not any("hostPort" in port for port in container.get("ports", ()))


def test_only_a_host_path_that_was_asked_for_is_beyond_restricted(
    cases: dict[str, Rendered],
) -> None:
    allowed = {"configMap", "emptyDir", "persistentVolumeClaim", "secret"}
    for case, rendered in cases.items():
        kinds = {
            kind
            for _, pod in rendered.pods()
            for volume in pod.get("volumes", ())
            for kind in volume.keys() - {"name"}
        }
        assert kinds - allowed == ({"hostPath"} if case == "external-redis" else set()), case


def test_no_pod_has_a_token_or_the_variables_of_services(case: Rendered) -> None:
    for name, pod in case.pods():
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["enableServiceLinks"] is False, name
    for account in case.of("ServiceAccount"):
        assert account["automountServiceAccountToken"] is False


def test_every_volume_that_is_mounted_is_there_and_none_is_idle(case: Rendered) -> None:
    for name, pod in case.pods():
        volumes = {volume["name"] for volume in pod.get("volumes", ())}
        mounted = {
            mount["name"]
            for container in containers(pod)
            for mount in container.get("volumeMounts", ())
        }
        assert mounted == volumes, name


def test_selectors_find_the_pods_of_their_own_workload_alone(case: Rendered) -> None:
    workloads = [*case.of("Deployment"), *case.of("StatefulSet")]
    for workload in workloads:
        wanted = workload["spec"]["selector"]["matchLabels"].items()
        found = [
            each["metadata"]["name"]
            for each in workloads
            if wanted <= each["spec"]["template"]["metadata"]["labels"].items()
        ]
        assert found == [workload["metadata"]["name"]]


def test_services_budgets_and_policies_select_something(case: Rendered) -> None:
    pods = [each["spec"]["template"]["metadata"]["labels"] for each in case.of("Deployment")]
    pods += [each["spec"]["template"]["metadata"]["labels"] for each in case.of("StatefulSet")]
    for each in case.of("LeaderWorkerSet"):
        template = each["spec"]["leaderWorkerTemplate"]["workerTemplate"]
        pods.append(template["metadata"]["labels"])
    selectors = [each["spec"]["selector"] for each in case.of("Service")]
    selectors += [
        each["spec"]["selector"]["matchLabels"] for each in case.of("PodDisruptionBudget")
    ]
    selectors += [each["spec"]["podSelector"]["matchLabels"] for each in case.of("NetworkPolicy")]
    for selector in selectors:
        assert any(selector.items() <= labels.items() for labels in pods), selector


def test_services_read_what_the_chart_tells_them(case: Rendered, tmp_path: Path) -> None:
    """Names, types and combinations, by the services' own reader."""
    for name, container in _services(case):
        role = container["args"][1]
        # What Kubernetes sets is a text, but for the number of a pod in its group.
        numbers = {"BATON_NODE_RANK": "1"}
        given = {key: value or numbers.get(key, "x") for key, value in env(container).items()}
        given.setdefault("BATON_REDIS_URL", "")
        if role != "router":
            config = load_config(CONFIGS[role], [], prog=name, environ=given)
            assert config.worker.port == 50061
            assert config.worker.access.cluster_token is not None
        else:
            router = load_config(RouterConfig, [], prog=name, environ=given)
            assert router.access.insecure_bind is (router.api_keys is None)


def test_graces_leave_time_to_drain(case: Rendered) -> None:
    for name, pod in case.pods():
        for container in pod["containers"]:
            if "BATON_DRAIN_GRACE_S" not in env(container):
                continue
            hook = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
            needed = float(env(container)["BATON_DRAIN_GRACE_S"] or 0)
            needed += float(hook[1]) if hook else 0
            assert pod["terminationGracePeriodSeconds"] > needed, name


def test_custom_resources_are_asked_for(cases: dict[str, Rendered]) -> None:
    kinds = {each["kind"] for each in cases["default"].objects}
    assert not kinds & CUSTOM


def _services(case: Rendered) -> list[tuple[str, Object]]:
    return [
        (name, container)
        for name, pod in case.pods()
        for container in pod["containers"]
        if container.get("args", [""])[0] == "serve"
    ]
