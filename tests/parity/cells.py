"""The cells of the table, and the outcomes that were found."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from tests.fakes.families.cases import CASES as FAMILY_CASES
from tests.unit.model.families.test_llama import CASES as LLAMA_CASES
from tests.unit.model.test_generic import OTHERS

FILE = Path(__file__).with_name("outcomes.json")
EXECUTORS = ("torch", "native", "transformers")
PRECISIONS = ("float32", "bfloat16", "int8")
EQUAL, REFUSED, DIFFERS = "equal", "refused: ", "differs: "
#: By name: a model type of transformers, and what its config says.
CASES: dict[str, tuple[str, dict[str, Any]]] = {**LLAMA_CASES, **FAMILY_CASES, **OTHERS}


@dataclass(frozen=True, slots=True)
class Cell:
    """What computes a configuration, and in which precision."""

    case: str
    executor: str
    precision: str

    @property
    def key(self) -> str:
        """Name in the file."""
        return f"{self.executor} {self.precision}"

    @property
    def settings(self) -> dict[str, str]:
        """How the model is loaded; beside 8-bit weights the rest is bfloat16."""
        return {
            "model_impl": self.executor,
            "dtype": "float32" if self.precision == "float32" else "bfloat16",
            "quantization": "int8" if self.precision == "int8" else "none",
        }


def cells_of(case: str) -> list[Cell]:
    """All of one configuration."""
    return [Cell(case, *axes) for axes in product(EXECUTORS, PRECISIONS)]


def stored_outcomes() -> dict[str, dict[str, list[str]]]:
    """By case and cell: an outcome for each place, as of the last run."""
    found: dict[str, dict[str, list[str]]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found
