"""Writes the table of docs/checkpoints.md that says whose numbers those of a format are equal to.

python -m tests.oracles.page
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.oracles.base import INPUTS, LOGITS, recordings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.oracles.base import Recording

PAGE = Path(__file__).parents[2] / "docs" / "checkpoints.md"
_PART = re.compile(r"(<!-- oracles -->\n).*?(<!-- end -->)", re.DOTALL)
_HEAD = "| format | written and read by | what | equal |\n|---|---|---|---|\n"
_IN_TESTS = "[test_matrices.py](../tests/unit/model/formats/test_matrices.py)"


@dataclass(frozen=True, slots=True)
class _Row:
    method: str
    library: str
    what: str
    equal: str

    def __str__(self) -> str:
        return f"| `{self.method}` | {self.library} | {self.what} | {self.equal} |"


#: Formats whose checkpoints are written while the tests run.
_OTHERS = (
    _Row(
        "compressed-tensors",
        f"its library, in {_IN_TESTS}",
        "all formats of the table above",
        "weights, rounded inputs",
    ),
    _Row("mxfp4", f"transformers, in {_IN_TESTS}", "experts", "weights"),
    _Row("fp8", f"transformers, in {_IN_TESTS}", "blocks, scales as floats and powers", "weights"),
    _Row(
        "fbgemm_fp8",
        f"a writer from its description, in {_IN_TESTS}",
        "rows",
        "weights, rounded inputs",
    ),
)


def written(page: str) -> str:
    """The page with its table as it has to be."""
    return _PART.sub(lambda found: found[1] + table() + found[2], page)


def table() -> str:
    """Formats by library, with what was recorded of each."""
    by_library: dict[tuple[str, str], list[Recording]] = {}
    for each in recordings():
        by_library.setdefault((each.method, each.about.library), []).append(each)
    rows = [
        _Row(method, f"{library}: `{_readers(own)}`", _list(own), _equal(own))
        for (method, library), own in sorted(by_library.items())
    ]
    return _HEAD + "".join(f"{row}\n" for row in (*rows, *_OTHERS))


def _readers(own: Iterable[Recording]) -> str:
    return "`, `".join(sorted({each.about.reader for each in own}))


def _list(own: Iterable[Recording]) -> str:
    return "<br>".join(dict.fromkeys(each.about.what for each in own))


def _equal(own: list[Recording]) -> str:
    parts = ["weights"]
    if any(each.modules(INPUTS) for each in own):
        parts.append("rounded inputs")
    if any(LOGITS in each.oracle for each in own):
        parts.append("logits")
    return ", ".join(parts)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
