"""The list of all arguments: what `--help` shows, and the page of the manual."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.arguments.base import Inert, Kind, Refused, Same, Spelled
from shared.arguments.table import ARGUMENTS, GROUPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shared.arguments.base import Argument

#: What the kinds of meanings are called.
TITLES: dict[type, str] = {
    Same: "the same meaning",
    Spelled: "another spelling",
    Inert: "no effect",
    Refused: "refused, unless the value changes nothing",
}
_HEAD = """# vLLM's engine arguments

`baton serve MODEL`, `baton up` and the services know every engine argument of vLLM 0.32, those of
earlier versions that are gone, and the flags of `vllm serve` about its server. Forms are vLLM's,
too: `--max_num_seqs`, `-tp 1`, `4k` (4,000), `4K` (4,096), `None`,
`--speculative-config.method ngram`, lists with spaces, and `--config FILE.yaml`. The last column is
the test, below `tests/`, of what an argument does, or of its refusal. Written by
`python -m scripts.arguments_page`.
"""


def help_text() -> str:
    """Return the names by meaning, a paragraph each."""
    paragraphs = ["vLLM's engine arguments (reasons: docs/arguments.md)."]
    for kind, title in TITLES.items():
        names = [each.name for each in ARGUMENTS.values() if _kind(each) is kind]
        paragraphs.append(f"{title.capitalize()} ({len(names)}): {', '.join(sorted(names))}.")
    return "\n\n".join(paragraphs)


def page(test_of: Callable[[Argument], str]) -> str:
    """Return the table of the manual's page, in Markdown; `test_of` names an argument's test."""
    lines = [_HEAD, "| here | arguments |", "|---|---|"]
    for kind, title in TITLES.items():
        count = sum(_kind(each) is kind for each in ARGUMENTS.values())
        lines.append(f"| {title} | {count} |")
    for title, arguments in GROUPS.items():
        lines += [f"\n## {title.capitalize()}\n", "| argument | default | here | | test |"]
        lines += ["|---|---|---|---|---|", *(_row(each, test_of(each)) for each in arguments)]
    return "\n".join(lines) + "\n"


def _kind(argument: Argument) -> type:
    """Return the kind of meaning; values alone may be spelled differently."""
    meaning = argument.meaning
    is_same = isinstance(meaning, Spelled) and meaning.flags == argument.name
    return Same if is_same else type(meaning)


def _row(argument: Argument, test: str) -> str:
    name = f"`{argument.name}`" + (f", `{argument.short}`" if argument.short else "")
    default = "" if argument.default is None or argument.kind is Kind.OBJECT else argument.default
    shown = f"`{default}`" if default else ""
    remarks = "; ".join(_remarks(argument))
    cells = (name, shown, TITLES[_kind(argument)], remarks, f"`{test}`")
    return f"| {' | '.join(cells)} |"


def _remarks(argument: Argument) -> Iterator[str]:
    meaning = argument.meaning
    if _kind(argument) is Spelled:
        assert isinstance(meaning, Spelled)
        yield ", ".join(f"`{flag}`" for flag in meaning.flags.split(", "))
    if isinstance(meaning, Refused) and meaning.harmless:
        yield "also accepted: " + ", ".join(f"`{each}`" for each in meaning.harmless)
    text = meaning.reason if isinstance(meaning, Inert | Refused) else meaning.note
    if text:
        yield text
