"""Documents against the code and each other: tables have every row, links and flags exist."""

from __future__ import annotations

import dataclasses
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer

import baton_client
from baton_client.errors import BY_NAME, BY_STATUS
from baton_client.options import ChatOptions
from cli.__main__ import app
from scripts.chart_schema import CONFIGS, OWN, settings_schema
from shared import errors
from shared.arguments.base import Spelled
from shared.arguments.table import ARGUMENTS
from shared.model.quantize.scheme import SCHEMES
from shared.rpc.status import grpc_status, http_status

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
#: Those that people read, wherever they lie.
DOCUMENTS = sorted(
    path for pattern in ("*.md", "docs/**/*.md", "*/README.md") for path in ROOT.glob(pattern)
)
_CODE = re.compile(r"`(\w+)`")
#: Those whose flags are of Baton's own commands, but for a few.
MANUALS = (
    "README.md", "docs/api.md", "docs/batch.md", "docs/drafts.md",
    "docs/metrics.md", "docs/offload.md", "docs/operations.md", "docs/overload.md",
    "docs/quantize.md", "docs/sdk.md",
    "docs/security.md", "docs/structured-output.md", "docs/tools.md",
    *(str(path.relative_to(ROOT)) for path in sorted(DOCS.glob("architecture/*.md"))),
)  # fmt: skip
_OTHERS = {"--wait", "--help", "--previous"}
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def rows(document: str, heading: str) -> Iterator[list[str]]:
    """Cells of the first table below a heading, without its head."""
    text = (DOCS / document).read_text(encoding="utf-8")
    _, _, below = text.partition(f"\n{heading}\n")
    assert below, f"{document} has no {heading}"
    table = re.search(r"(^\|.*\|\n)+", below, re.MULTILINE)
    assert table is not None
    for line in table[0].splitlines()[2:]:
        yield [cell.strip() for cell in line.strip("|").split(" |")]


def names_in(cells: list[str]) -> set[str]:
    """Everything set as code in a row's first cell."""
    return set(_CODE.findall(cells[0]))


def leaves(module: object, base: type[Exception]) -> list[type[Exception]]:
    """All errors of a module but the base of the tree."""
    found = [one for one in vars(module).values() if isinstance(one, type)]
    return [one for one in found if issubclass(one, base) and one is not base]


def test_every_error_is_explained_with_its_status() -> None:
    told = {name: (http, grpc) for name, http, grpc, *_ in rows("operations.md", "## Errors")}
    meant = {}
    for cls in leaves(errors, errors.BatonError):
        error = cls.__new__(cls)
        meant[cls.__name__] = (str(http_status(error)), grpc_status(error).name)
    assert told == meant


@pytest.mark.parametrize(
    ("heading", "reasons"),
    [
        ("#### Why requests are refused", errors.RefusalReason),
        ("#### Why transfers fail", errors.TransferFailure),
    ],
)
def test_every_reason_is_explained(heading: str, reasons: type[errors.RefusalReason]) -> None:
    told = [name for cells in rows("operations.md", heading) for name in sorted(names_in(cells))]
    assert sorted(told) == sorted(reasons)


def test_every_exception_of_the_sdk_is_explained_with_its_statuses() -> None:
    told = {cells[0].strip("`"): set(cells[1].split(", ")) for cells in rows("sdk.md", "## Errors")}
    meant = {cls.__name__: set() for cls in leaves(baton_client, baton_client.BatonError)}
    for status, cls in BY_STATUS.items():
        meant[cls.__name__].add(status.name)
    # The status is the same as that of OverloadedError; its name in the metadata tells them apart.
    meant[BY_NAME["PayloadTooLargeError"].__name__] = {"RESOURCE_EXHAUSTED"}
    assert told == meant


def test_the_sdk_repeats_what_its_table_says() -> None:
    told = {cells[0].strip("`"): cells[3] == "yes" for cells in rows("sdk.md", "## Errors")}
    policy = baton_client.RetryPolicy()
    repeated = {
        cls.__name__: policy.delay_s(cls("x"), 1, remaining_s=60) is not None
        for cls in leaves(baton_client, baton_client.BatonError)
    }
    assert told == repeated


def test_all_that_an_answer_cost_is_explained() -> None:
    text = (DOCS / "sdk.md").read_text(encoding="utf-8")
    values = (baton_client.Usage, baton_client.Timings, baton_client.PromptSources)
    fields = {field.name for value in values for field in dataclasses.fields(value)}
    assert fields <= set(_CODE.findall(text))


def test_every_option_of_the_sdk_is_named() -> None:
    told = set(_CODE.findall((DOCS / "sdk.md").read_text(encoding="utf-8")))
    assert ChatOptions.__optional_keys__ | ChatOptions.__required_keys__ <= told


def test_the_defaults_of_retries_are_those_in_the_text() -> None:
    policy = baton_client.RetryPolicy()
    text = " ".join((DOCS / "sdk.md").read_text(encoding="utf-8").split())
    assert f"at most `max_attempts` ({policy.max_attempts}) times" in text
    assert f"`base_delay_s` ({policy.base_delay_s:g}), doubles" in text
    assert f"`max_delay_s` ({policy.max_delay_s:g})" in text


def anchors(document: Path) -> set[str]:
    """What can be linked to in a document, as GitHub names its headings."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    for link in _LINK.findall(document.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), link
        assert not anchor or target.suffix != ".md" or anchor in anchors(target), link


@cache
def flags() -> set[str]:
    """Of every service and of every command of `baton`, and vLLM's that are spelled differently."""
    known = {name for cls in CONFIGS.values() for name in settings_schema(cls)["properties"]} | OWN
    found = {"--" + name.replace("_", "-") for name in known}
    found |= {each.name for each in ARGUMENTS.values() if isinstance(each.meaning, Spelled)}
    commands: list[Any] = [typer.main.get_command(app)]
    while commands:
        command = commands.pop()
        commands += getattr(command, "commands", {}).values()
        found.update(*(param.opts for param in command.params))
    return found


@pytest.mark.parametrize("document", MANUALS)
def test_every_flag_exists(document: str) -> None:
    named = set(_FLAG.findall((ROOT / document).read_text(encoding="utf-8")))
    assert named - _OTHERS <= flags()


def test_every_scheme_is_in_the_table_of_quantize() -> None:
    named = [re.findall(r"`([\w-]+)`", cells[0]) for cells in rows("quantize.md", "## Schemes")]
    assert [name for row in named for name in row] == list(SCHEMES)
