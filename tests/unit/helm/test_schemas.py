"""Rendered objects against Kubernetes' schemas, and the chart's own against what it says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import kubernetes_validate
import pytest
import yaml

from tests.unit.helm.chart import CASES, CHART, CUSTOM, NEWEST, ROOT, Rendered, case_flags, render

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The oldest and the newest that the package has.
VERSIONS = ("1.25.0", NEWEST)
_REFERENCE = re.compile(r'"#/\$defs/([^"]+)"')
SCHEMAS = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"


@pytest.mark.parametrize("version", VERSIONS)
def test_objects_validate_strictly(version: str, cases: dict[str, Rendered]) -> None:
    """Strictly: a field that Kubernetes does not know is an error."""
    found = False
    for case in CASES:
        rendered = cases[case] if version == NEWEST else render(*case_flags(case), version=version)
        for each in rendered.objects:
            if each["kind"] in CUSTOM:
                continue
            found = True
            errors = list(_validator(version, each["apiVersion"], each["kind"]).iter_errors(each))
            name = f"{case}: {each['kind']} {each['metadata']['name']}"
            assert not errors, f"{name}: {errors[0].instance_path}: {errors[0].message}"
    assert found


def test_an_unknown_field_would_be_noticed() -> None:
    service = {"apiVersion": "v1", "kind": "Service", "spec": {"selectors": {}}}
    assert not _validator(VERSIONS[-1], "v1", "Service").is_valid(service)


def test_the_schema_has_the_settings_that_services_have() -> None:
    command = [sys.executable, "scripts/chart_schema.py", "--check"]
    environ = {"PYTHONPATH": ".:proto:client", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_readme_describes_every_value_and_no_other() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    rows = re.findall(r"^\| `([^`]+)` \|", (CHART / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(_leaves(values))


def _leaves(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Paths of values; what belongs to Kubernetes is one value, and so is each entry of a map."""
    whole = {
        "models", "pools", "resources", "nodeSelector", "rollingUpdate", "labels", "settings",
    }  # fmt: skip
    for name, value in values.items():
        if isinstance(value, dict) and value and name not in whole:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


@cache
def _definitions(version: str) -> dict[str, Any]:
    text = (SCHEMAS / f"v{version}-local-strict" / "_definitions.json").read_text()
    return dict(json.loads(text)["$defs"])


def _needed(name: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """A definition, and those that it refers to, not the megabytes of all."""
    found: dict[str, Any] = {}
    left = [name]
    while left:
        if (name := left.pop()) not in found:
            found[name] = definitions[name]
            left += _REFERENCE.findall(json.dumps(found[name]))
    return found


@cache
def _validator(version: str, api_version: str, kind: str) -> Any:
    definitions = _definitions(version)
    group, _, short = api_version.rpartition("/")
    for name, definition in definitions.items():
        for known in definition.get("x-kubernetes-group-version-kind", ()):
            if (known["group"], known["version"], known["kind"]) == (group, short, kind):
                schema = {"$ref": f"#/$defs/{name}", "$defs": _needed(name, definitions)}
                return jsonschema_rs.validator_for(schema)
    raise AssertionError(f"Kubernetes {version} has no {api_version} {kind}")
