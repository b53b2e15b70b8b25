"""Parsers by name, from packages, and from what a chat template shows."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from services.router.parsers import find
from services.router.parsers.find import (
    REASONING_FORMATS,
    TOOL_FORMATS,
    find_reasoning_format,
    find_tool_format,
)
from services.router.parsers.formats.mistral import MistralFormat
from services.router.parsers.formats.table import TOOL_ROWS
from services.router.parsers.reasoning.table import REASONING_ROWS
from shared.errors import ConfigError

TEMPLATES = Path("tests/fakes/text/chat_templates")


@pytest.mark.parametrize("name", ["hermes", "llama3_json", "mistral", "pythonic"])
def test_the_templates_of_a_family_show_its_format(name: str) -> None:
    template = (TEMPLATES / f"{name}.jinja").read_text()
    assert find_tool_format("auto", ["plain", template]) is TOOL_FORMATS[name]
    assert [row.names[0] for row in TOOL_ROWS if row.is_shown_by(template)] == [name]


@pytest.mark.parametrize(
    "template",
    ["{{ messages }}", "<tool_call> [TOOL_CALLS]", "<arg_key> <function_calls>"],
)
def test_what_is_not_certain_is_not_guessed(template: str) -> None:
    assert find_tool_format("auto", [template]) is None


def test_reasoning_is_seen_in_a_template() -> None:
    hermes = (TEMPLATES / "hermes.jinja").read_text()
    assert find_reasoning_format("auto", [hermes]) is REASONING_FORMATS["think"]
    assert find_reasoning_format("auto", ["{{ messages }}"]) is None
    assert find_reasoning_format("deepseek_r1", []) is REASONING_FORMATS["deepseek_r1"]


def test_none_is_none() -> None:
    assert find_tool_format("none", ["<tool_call>"]) is None
    assert find_reasoning_format("none", ["<think>"]) is None


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no tool call parser 'gpt'; known: auto, none, hermes"):
        find_tool_format("gpt", [])
    with pytest.raises(ConfigError, match=r"no reasoning parser 'gpt'; known: auto, none"):
        find_reasoning_format("gpt", [])


def test_near_names_are_proposed() -> None:
    with pytest.raises(ConfigError, match=r"did you mean qwen3_coder\? known"):
        find_tool_format("qwen3-coder", [])
    with pytest.raises(ConfigError, match=r"did you mean deepseek_r1\b"):
        find_reasoning_format("deepseek-r1", [])


def test_the_documentation_has_every_row() -> None:
    page, bar = Path("docs/tools.md").read_text(), r"\|"
    for rows in (TOOL_ROWS, REASONING_ROWS):
        lines = [
            f"| {', '.join(f'`{name}`' for name in row.names)} "
            f"| {row.writes.replace('|', bar)} | {row.families} |"
            for row in rows
        ]
        assert "\n".join(lines) in page


def test_names_are_used_once() -> None:
    for rows, found in ((TOOL_ROWS, TOOL_FORMATS), (REASONING_ROWS, REASONING_FORMATS)):
        assert sum(len(row.names) for row in rows) == len(found)


def test_packages_bring_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    def brought(group: str) -> list[Any]:
        here = "services.router.parsers.formats.mistral:MistralFormat"
        return [EntryPoint("mine", here, group), EntryPoint("gone", "no.such.module:X", group)]

    monkeypatch.setattr(find, "entry_points", brought)
    assert isinstance(find_tool_format("mine", []), MistralFormat)
    with pytest.raises(ConfigError, match="'gone' cannot be loaded"):
        find_tool_format("gone", [])
