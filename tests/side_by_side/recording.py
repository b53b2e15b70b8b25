"""vLLM's answers in a file, so that Baton can be held to them without vLLM."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.side_by_side.answer import Answer

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE = Path(__file__).with_name("recorded.json")


@dataclass(slots=True)
class Recording:
    """Answers by the key of their request, and what vLLM says of itself."""

    version: str
    date: str
    #: Of each generating endpoint: the fields of vLLM's schema.
    fields: dict[str, list[str]]
    answers: dict[str, Answer] = field(default_factory=dict)

    def save(self, file: Path = FILE) -> None:
        """Write it. Shapes that many answers have are written once."""
        shapes: dict[str, int] = {}
        rows = {}
        for key, answer in self.answers.items():
            text = json.dumps(answer.shape, sort_keys=True)
            number = shapes.setdefault(text, len(shapes))
            row = [answer.status, answer.media_type, number, answer.error, answer.text]
            while row[-1] is None:
                row.pop()
            rows[key] = row
        head = {"version": self.version, "date": self.date, "fields": self.fields}
        lines = [f'"{name}": {json.dumps(value)}' for name, value in head.items()]
        lines.append('"shapes": [\n' + ",\n".join(shapes) + "\n]")
        answers = (f"{json.dumps(key)}: {json.dumps(row)}" for key, row in rows.items())
        lines.append('"answers": {\n' + ",\n".join(answers) + "\n}")
        file.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def load(file: Path = FILE) -> Recording:
    """Read what was written."""
    content = json.loads(file.read_text(encoding="utf-8"))
    shapes = content["shapes"]
    answers = {key: _answer(row, shapes) for key, row in content["answers"].items()}
    return Recording(content["version"], content["date"], content["fields"], answers)


def _answer(row: list[Any], shapes: list[Mapping[str, str]]) -> Answer:
    status, media_type, number, error, text = (*row, None, None)[:5]
    return Answer(status, media_type, dict(shapes[number]), error=error, text=text)
