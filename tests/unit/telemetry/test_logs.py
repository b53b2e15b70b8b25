"""Lines are JSON objects with the service, and with a request's ids where there is one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
CODE = f"""
import logging, sys, threading
sys.path[:0] = ['{ROOT}']
import structlog
from shared.telemetry.logs import configure_logs
configure_logs(service="decode", level="info", as_json=True)
log = structlog.get_logger("a")
structlog.contextvars.bind_contextvars(request_id="r1", trace_id="t1")
log.info("one", request_id="own")
logging.getLogger("library").warning("two")
log.debug("hidden")
thread = threading.Thread(target=lambda: log.error("three"))
thread.start()
thread.join()
configure_logs(service="decode", level="info", as_json=False)
def fail():
    prompt = "what a user wrote"
    raise ValueError("four")
try:
    fail()
except ValueError:
    structlog.get_logger("b").exception("broken")
"""


def test_every_line_says_who_and_about_what() -> None:
    result = subprocess.run(
        [sys.executable, "-P", "-c", CODE], capture_output=True, text=True, check=True
    )
    lines = [json.loads(line) for line in result.stderr.splitlines()[:3]]
    assert [line["event"] for line in lines] == ["one", "two", "three"]
    assert {line["service"] for line in lines} == {"decode"}
    assert [line.get("request_id") for line in lines] == ["own", "r1", None]
    assert [line.get("trace_id") for line in lines] == ["t1", "t1", None]
    assert {"level", "timestamp", "logger"} <= lines[1].keys()
    # For people: where an error was, and no value of a variable. An engine has so many that they
    # took seconds, in which no request could end; and they are users' own.
    assert "ValueError: four" in result.stderr
    assert "what a user wrote" not in result.stderr
