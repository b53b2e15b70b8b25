"""A real backend of traces for the end-to-end script: Arize Phoenix, which takes OTLP over gRPC and
gives spans back over HTTP. It lives in a virtual environment of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import venv
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scripts.e2e.asking import free_ports

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PACKAGE = "arize-phoenix==20.26.1"
START_S = 180.0
READ_S = 60.0


@dataclass(frozen=True, slots=True)
class StoredSpan:
    """One span as the backend has it; times in Unix seconds."""

    span_id: str
    parent_id: str
    name: str
    began_s: float
    ended_s: float
    attributes: Mapping[str, Any]
    events: tuple[str, ...]

    @property
    def duration_s(self) -> float:
        """From its beginning to its end."""
        return self.ended_s - self.began_s


def install(folder: Path) -> Path:
    """The command `phoenix`; its environment is made in `folder` unless it is there."""
    command = folder / "bin" / "phoenix"
    if not command.exists():
        print(f"installing {PACKAGE} into {folder}, some minutes and 0.9 GB", flush=True)
        venv.create(folder, with_pip=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", PACKAGE]
        subprocess.run(pip, check=True)
    return command


class Phoenix:
    """A running backend with an empty database in `folder`. Leaving it stops it."""

    def __init__(self, command: Path, folder: Path) -> None:
        self.port, self.otlp_port = free_ports(2)
        self._log = folder / "phoenix.log"
        environ = {
            # Its packages are not ours.
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "PHOENIX_WORKING_DIR": str(folder),
            "PHOENIX_HOST": "127.0.0.1",
            "PHOENIX_PORT": str(self.port),
            "PHOENIX_GRPC_PORT": str(self.otlp_port),
            "PHOENIX_TELEMETRY_ENABLED": "false",
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(command), "serve"], env=environ, stdout=log, stderr=log
            )

    def wait_ready(self) -> None:
        """Wait until it listens.

        Raises:
            AssertionError: it ended, or took too long.
        """
        deadline_s = time.monotonic() + START_S
        while not self._answers():
            log = self._log.read_text(errors="replace")[-2000:]
            assert self._process.poll() is None, log
            assert time.monotonic() < deadline_s, f"not ready after {START_S:g} s\n{log}"
            time.sleep(0.5)

    def trace(self, trace_id: str, *names: str) -> list[StoredSpan]:
        """A trace, in the order in which its spans began, once it has a span of each name.

        Raises:
            AssertionError: they do not come.
        """
        deadline_s = time.monotonic() + READ_S
        while True:
            spans = self._spans(trace_id)
            missing = set(names) - {span.name for span in spans}
            if not missing:
                return sorted(spans, key=lambda span: (span.began_s, span.ended_s))
            assert time.monotonic() < deadline_s, f"trace {trace_id} lacks {sorted(missing)}"
            time.sleep(0.2)

    def __enter__(self) -> Phoenix:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            print("had to kill phoenix", file=sys.stderr)

    def _answers(self) -> bool:
        try:
            self._get("/healthz")
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
        return True

    def _spans(self, trace_id: str) -> list[StoredSpan]:
        asked = urllib.parse.urlencode({"trace_id": trace_id, "limit": 200})
        try:
            found = json.loads(self._get(f"/v1/projects/default/spans/otlpv1?{asked}"))
        except urllib.error.HTTPError as error:
            if error.code == 404:  # the project is made with its first span
                return []
            raise
        return [stored_span(span) for span in found["data"]]

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=20) as response:
            content: bytes = response.read()
        return content


def stored_span(span: Mapping[str, Any]) -> StoredSpan:
    """One of OTLP's spans in JSON."""
    return StoredSpan(
        span_id=span["span_id"],
        parent_id=span.get("parent_span_id") or "",
        name=span["name"],
        began_s=int(span["start_time_unix_nano"]) / 1e9,
        ended_s=int(span["end_time_unix_nano"]) / 1e9,
        attributes={pair["key"]: _value(pair["value"]) for pair in span["attributes"]},
        events=tuple(event["name"] for event in span.get("events") or ()),
    )


def _value(value: Mapping[str, Any]) -> Any:
    """OTLP's JSON names a value by its type."""
    [(kind, content)] = ((kind, content) for kind, content in value.items() if content is not None)
    if kind == "array_value":
        return [_value(one) for one in content["values"]]
    return int(content) if kind == "int_value" else content
