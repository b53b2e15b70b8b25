"""Write docs/arguments.md: `python -m scripts.arguments_page`."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.arguments.base import Inert, Refused
from shared.arguments.page import page

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.arguments.base import Argument

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "arguments.md"
#: The test of each argument, and the command lines that contradict themselves.
EFFECTS = ROOT / "tests" / "unit" / "arguments" / "effects.toml"
CONTRADICTIONS = EFFECTS.with_name("contradictions.toml")
_HEAD = """
## Contradictions

Refused before anything is loaded, by `baton serve`, `baton up`, the services and `LLM`; every line
is a test. MODEL is a model of 2,048 positions that is not quantised, OTHER one with another
vocabulary. Arguments without an effect contradict nothing.

| words | answer | vLLM's check |
|---|---|---|
"""
_SERVED = """
vLLM refuses these, and Baton serves them:

| words | why | vLLM's check |
|---|---|---|
"""


def whole_page() -> str:
    """Return the manual's page, in Markdown."""
    listed = _read(CONTRADICTIONS)
    return "".join(
        (
            page(named_test),
            _HEAD,
            *_rows(listed["refused"]),
            _SERVED,
            *_rows(listed["served"]),
        )
    )


def named_test(argument: Argument) -> str:
    """Return the test of an argument's effect, or of its refusal, below `tests/`."""
    tests = _read(EFFECTS)
    if isinstance(argument.meaning, Inert | Refused):
        return str(tests["no_effect" if isinstance(argument.meaning, Inert) else "refused"])
    return str(tests["effect"][argument.name])


@cache
def _read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _rows(listed: list[dict[str, str]]) -> Iterator[str]:
    for row in listed:
        place = f"`{row['vllm']}`" if "vllm" in row else ""
        yield f"| `{row['words']}` | {row['reason']} | {place} |\n"


if __name__ == "__main__":
    PAGE.write_text(whole_page(), encoding="utf-8")
