"""Rules and dashboards ask for metrics that exist, and mean what their tests say."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.dashboards.__main__ import FOLDER, files, outdated
from tests.fakes.pages.metrics_table import PAGE, documented

ROOT = Path(__file__).parents[3]
PROMETHEUS = ROOT / "observability" / "prometheus"
RULES = sorted((PROMETHEUS / "rules").glob("*.yaml"))
TESTS = sorted((PROMETHEUS / "tests").glob("*.yaml"))
_METRIC = re.compile(r"\bbaton[_:][a-z0-9_:]+")


@cache
def rules() -> list[dict[str, Any]]:
    return [
        rule
        for path in RULES
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
    ]


@cache
def queries() -> dict[str, str]:
    """Every panel's."""
    found = {}
    for name, text in ((path.name, text) for path, text in files().items()):
        for panel in json.loads(text)["panels"]:
            for number, target in enumerate(panel.get("targets", ())):
                found[f"{name}: {panel['title']} {number}"] = target["expr"]
    return found


@cache
def known() -> set[str]:
    samples = {sample for row in documented().values() for sample in row.samples()}
    return samples | {rule["record"] for rule in rules() if "record" in rule}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_s_metrics_exist(rule: dict[str, Any]) -> None:
    names = set(_METRIC.findall(rule["expr"]))
    assert names or "up{" in rule["expr"]
    assert names <= known()


@pytest.mark.parametrize("panel", queries())
def test_a_panel_s_metrics_exist(panel: str) -> None:
    names = set(_METRIC.findall(queries()[panel]))
    assert names
    assert names <= known()


def test_panels_are_of_the_models_that_are_picked() -> None:
    """If their metrics have a model: of others there would be nothing to see."""
    samples = {name for row in PAGE.read_text().splitlines() for name in _of_a_model(row)}
    for panel, expr in queries().items():
        for name, labels in re.findall(r"\b(baton[_:]\w+)(\{[^}]*\})?", expr):
            has_model = any(name.startswith(family) for family in samples)
            is_worker_s = 'component="prefill"' in labels
            assert ("$model" in labels) == (has_model and not is_worker_s), (panel, name)
    for path, text in files().items():
        assert ("label_values(baton_num_requests_running, model_name)" in text) == (
            "$model" in text
        ), path


def _of_a_model(row: str) -> list[str]:
    found = re.match(r"\| `(baton_\w+)` \|.*`model_name`", row)
    return [found[1]] if found else []


def test_the_dashboards_are_those_of_the_generator() -> None:
    assert outdated() == []
    uids = [json.loads(path.read_text())["uid"] for path in FOLDER.glob("*.json")]
    assert len(set(uids)) == 4


def test_every_alert_is_tested_and_explained() -> None:
    alerts = {rule["alert"]: rule for rule in rules() if "alert" in rule}
    [tests] = [path.read_text() for path in TESTS if path.name == "alerts_test.yaml"]
    fired = set(re.findall(r"exp_samples:\n\s+- labels: '\{alertname=\"(\w+)\"\}'", tests))
    assert fired == alerts.keys()
    manual = (ROOT / "docs" / "operations.md").read_text()
    assert set(re.findall(r"^#### (Baton\w+)$", manual, re.MULTILINE)) == alerts.keys()
    for name, rule in alerts.items():
        assert rule["annotations"]["runbook"] == f"docs/operations.md#{name.lower()}"


#: Of the collector's smallest distribution, `otelcol`, which compose.yaml runs.
_OF_OTELCOL = {
    "receivers": {"otlp"},
    "processors": {"batch", "memory_limiter"},
    "exporters": {"debug", "otlp", "otlphttp", "file"},
    "extensions": {"health_check", "zpages", "pprof"},
}


def test_the_collector_s_pipelines_are_made_of_what_it_configures_and_has() -> None:
    config = yaml.safe_load((ROOT / "observability" / "otel" / "collector.yaml").read_text())
    used = {"extensions": set(config["service"]["extensions"])}
    for pipeline in config["service"]["pipelines"].values():
        assert pipeline["processors"][0] == "memory_limiter"
        for kind, names in pipeline.items():
            used.setdefault(kind, set()).update(names)
    assert used == {kind: set(config[kind]) for kind in _OF_OTELCOL}
    assert all(used[kind] <= known for kind, known in _OF_OTELCOL.items())


def promtool() -> str:
    path = shutil.which("promtool")
    if path is None:
        pytest.skip("promtool is not installed")
    return path


def test_promtool_finds_that_alerts_fire_when_they_should() -> None:
    result = subprocess.run(
        [promtool(), "test", "rules", *map(str, TESTS)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_promtool_can_read_the_configuration_and_every_query(tmp_path: Path) -> None:
    text = (PROMETHEUS / "prometheus.yaml").read_text()
    config = tmp_path / "prometheus.yaml"
    config.write_text(text.replace("/etc/prometheus/rules", str(PROMETHEUS / "rules")))
    panels = [
        {"record": f"panel:{number}", "expr": expr.replace("$__rate_interval", "5m")}
        for number, expr in enumerate(queries().values())
    ]
    asked = tmp_path / "panels.yaml"
    asked.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": panels}]}))
    for command in (["config", str(config)], ["rules", str(asked)]):
        result = subprocess.run(
            [promtool(), "check", *command], capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr
