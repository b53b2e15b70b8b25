"""Pools that follow the router's planner."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jsonschema_rs
import pytest

from services.router.planner.metrics import PlannerMetrics
from tests.unit.helm.chart import CASES, CHART, helm
from tests.unit.helm.keda import PROMETHEUS, SCALED_OBJECT

if TYPE_CHECKING:
    from tests.unit.helm.chart import Rendered

LABELS = 'namespace="here",service="r-baton-router-pydoc",model_name="pydoc",role="prefill"'
METRIC = "baton_planner_desired_workers"


def test_scaled_objects_fit_kedas_schema(cases: dict[str, Rendered]) -> None:
    schema = jsonschema_rs.validator_for(SCALED_OBJECT)
    trigger = jsonschema_rs.validator_for(PROMETHEUS)
    found = [each for case in CASES for each in cases[case].of("ScaledObject")]
    assert len(found) >= 3
    for each in found:
        errors = list(schema.iter_errors(each))
        assert not errors, f"{each['metadata']['name']}: {errors[0].message}"
        spec = each["spec"]
        assert spec["minReplicaCount"] <= spec["maxReplicaCount"]
        for one in spec["triggers"]:
            assert one["type"] == "prometheus"
            assert trigger.is_valid(one["metadata"]), one
    wrong = {**found[0], "spec": {**found[0]["spec"], "minReplicas": 1}}
    assert not schema.is_valid(wrong)


def test_pools_follow_what_the_planner_wants_of_their_role(cases: dict[str, Rendered]) -> None:
    spec = cases["planner"].one("ScaledObject", pool="prefill")["spec"]
    [trigger] = spec["triggers"]
    assert trigger["metadata"]["query"] == f"max({METRIC}{{{LABELS}}})"
    assert trigger["metadata"]["threshold"] == "1"
    # A lost router is no wish for no workers.
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    assert spec["minReplicaCount"] == 0
    # The planner has waited before it wants fewer.
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == 0
    hpa = cases["planner"].one("HorizontalPodAutoscaler", pool="decode")["spec"]
    [metric] = hpa["metrics"]
    assert metric["object"]["metric"] == {
        "name": METRIC,
        "selector": {"matchLabels": {"model_name": "pydoc", "role": "decode"}},
    }
    assert metric["object"]["describedObject"]["name"] == "r-baton-router-pydoc"
    assert metric["object"]["target"] == {"type": "AverageValue", "averageValue": "1"}
    # The metric that both ask for is one that routers have.
    names = {family.name for family in PlannerMetrics([]).collect()}
    assert METRIC in names


def test_the_router_is_told_to_plan_and_to_hold_requests(cases: dict[str, Rendered]) -> None:
    router = cases["planner"].of("Deployment", component="router")[0]
    env = {
        each["name"]: each.get("value")
        for each in router["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    assert env["BATON_PLANNER"] == "act"
    assert env["BATON_WORKER_WAIT_S"] == "300"
    assert env["BATON_PLANNER_MIN_PREFILL"] == "0"


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("router.settings.planner=off", "the router does not plan"),
        ("router.settings.worker_wait_s=0", "set router.settings.worker_wait_s"),
        ("router.settings.planner_min_prefill=1", "set router.settings.planner_min_prefill to 0"),
        ("pools.other.role=prefill", "only one pool of it can follow"),
    ],
)
def test_what_cannot_follow_the_planner_is_refused(flags: str, named: str) -> None:
    values = CHART / "ci" / "planner-values.yaml"
    done = helm("template", "r", str(CHART), "-f", str(values), "--set", flags)
    assert done.returncode != 0
    assert named in done.stderr
