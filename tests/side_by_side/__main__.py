"""Starts both servers, asks both, and writes the recording and the page.

python -m tests.side_by_side [--vllm URL] [--baton URL]: with URLs, of servers that run already.
With --recorded, vLLM's answers are those of the recording, and it need not be installed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import typer

from scripts.api_table import APIS
from tests.side_by_side import servers
from tests.side_by_side.ask import send
from tests.side_by_side.difference import differences
from tests.side_by_side.page import PAGE, page
from tests.side_by_side.recording import Recording, load
from tests.side_by_side.requests import requests
from tests.side_by_side.rules import RULES, rule_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.side_by_side.answer import Answer
    from tests.side_by_side.difference import Difference

#: vLLM's first answers compile.
_TIMEOUT_S = 120.0


async def ask_all(url: str) -> dict[str, Answer]:
    """All requests, one after the other."""
    async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_S, trust_env=False) as http:
        return {ask.key: await send(http, ask) for ask in requests()}


async def record(url: str) -> Recording:
    """Ask vLLM, and what it says of itself."""
    async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_S, trust_env=False) as http:
        version = (await http.get("/version")).json()["version"]
        document = (await http.get("/openapi.json")).json()
    fields = {path: _fields(document, path) for path in APIS}
    today = datetime.now(UTC).date().isoformat()
    return Recording(version, today, fields, await ask_all(url))


def _fields(document: Any, path: str) -> list[str]:
    """The fields of an endpoint's body, as an OpenAPI document has them."""
    body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    name = body["$ref"].rpartition("/")[2]
    return sorted(document["components"]["schemas"][name]["properties"])


def compare(recording: Recording, ours: dict[str, Answer]) -> list[Difference]:
    """All differences."""
    return [
        each
        for key, answer in recording.answers.items()
        for each in differences(key, answer, ours[key])
    ]


def problems(recording: Recording, found: Iterable[Difference]) -> Iterator[str]:
    """Differences without a reason, and reasons without a difference."""
    used = set()
    for each in found:
        rule = rule_of(each, recording.fields)
        used.add(rule)
        if rule is None:
            yield f"no reason: {each}"
    for rule in RULES:
        if rule not in used and not rule.is_of_chance:
            yield f"no difference any more: {rule.reason}"


def _running(url: str | None) -> contextlib.nullcontext[str] | None:
    return None if url is None else contextlib.nullcontext(url)


def main() -> int:
    """Return 1 if there is a difference without a reason, or a reason without a difference."""
    parser = argparse.ArgumentParser(description="Hold Baton to vLLM.")
    parser.add_argument("--vllm", help="URL of a vLLM that runs with the flags of servers.py")
    parser.add_argument("--baton", help="URL of a Baton that does")
    parser.add_argument(
        "--recorded", action="store_true", help="take vLLM's answers from the recording"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.recorded:
            recording = load()
        else:
            with _running(options.vllm) or servers.vllm(folder) as url:
                recording = asyncio.run(record(url))
        with _running(options.baton) or servers.baton(folder) as url:
            ours = asyncio.run(ask_all(url))
    found = compare(recording, ours)
    if not options.recorded:
        recording.save()
    PAGE.write_text(page(recording, found), encoding="utf-8")
    wrong = list(problems(recording, found))
    for problem in wrong:
        typer.echo(problem)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
