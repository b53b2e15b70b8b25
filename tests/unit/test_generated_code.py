"""What is generated is what is committed, and pyproject asks for versions that can load it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STUBS = ROOT / "proto" / "baton" / "v1"


def floor(package: str) -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [found] = [item for item in project["dependencies"] if re.match(rf"{package}>=", item)]
    return found.split(">=")[1]


def test_committed_stubs_match_the_contract() -> None:
    command = [sys.executable, "scripts/generate_stubs.py", "--check", "proto"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_floor_of_protobuf_is_what_the_stubs_ask_for() -> None:
    text = (STUBS / "common_pb2.py").read_text()
    match = re.search(r"^# Protobuf Python Version: (.+)$", text, re.MULTILINE)
    assert match is not None
    assert floor("protobuf") == match[1]


def test_the_floor_of_grpcio_is_what_the_stubs_ask_for() -> None:
    text = (STUBS / "router_pb2_grpc.py").read_text()
    match = re.search(r"^GRPC_GENERATED_VERSION = '(.+)'$", text, re.MULTILINE)
    assert match is not None
    assert floor("grpcio") == match[1]
