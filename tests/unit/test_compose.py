"""The Compose files beside `.env.example`, without a Docker Engine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(ROOT.glob("compose*.yaml"))
VARIABLE = re.compile(r"(?<!\$)\$\{(\w+)(?::?([-?])((?:[^{}]|\$\{[^}]*\})*))?\}")


def variables() -> dict[str, set[str]]:
    """Every variable of the files, with its defaults."""
    found: dict[str, set[str]] = {}
    for path in FILES:
        for name, kind, default in VARIABLE.findall(path.read_text()):
            found.setdefault(name, set())
            if kind == "-":
                found[name].add(default)
    return found


def documented() -> dict[str, str]:
    """The lines of .env.example."""
    lines = re.findall(r"^#(\w+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE)
    return dict(lines)


def test_every_variable_is_documented_with_its_default() -> None:
    known = documented()
    for name, defaults in variables().items():
        assert name in known, f"{name} is not in .env.example"
        # A default that is made of another variable is shown as what it comes to.
        plain = {default for default in defaults if "$" not in default}
        assert plain <= {known[name]}, f"{name}: {plain} here, {known[name]!r} there"


def test_nothing_is_documented_that_no_file_reads() -> None:
    read = variables().keys()
    assert {name for name in documented() if not name.startswith("BATON_")} <= read


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_our_containers_can_do_no_more_than_they_must(path: Path) -> None:
    services: dict[str, Any] = yaml.safe_load(path.read_text())["services"]
    for name, service in services.items():
        if "baton-" not in service.get("image", ""):
            continue
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        # Else Compose looks for them in a public registry before it builds them.
        assert service["pull_policy"] == "${PULL_POLICY:-never}", name


def test_ports_are_open_on_an_address_that_somebody_named() -> None:
    for path in FILES:
        for name, service in yaml.safe_load(path.read_text())["services"].items():
            for port in service.get("ports", ()):
                assert port.startswith(("${BIND_ADDRESS:-127.0.0.1}:", "${HOST_ADDRESS")), name
