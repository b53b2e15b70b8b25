"""What is asked in every place, and the comparison of the answers with the module's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fakes.families.cases import WINDOW
from tests.fakes.model.transformers_models import random_prompt
from tests.parity.cells import DIFFERS, EQUAL
from tests.parity.oracle import KEPT, VOCAB_SIZE, WrongAnswerError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.parity.cells import Cell
    from tests.parity.oracle import Oracle

BLOCK_SIZE, CHUNK, NUM_TOKENS = 8, 24, 8
#: One token, around a block and a window, three windows, and three chunks.
LENGTHS = (
    1,
    *(BLOCK_SIZE + n for n in (-1, 0, 1)),
    *(WINDOW + n for n in (-1, 0, 1)),
    3 * WINDOW,
    3 * CHUNK - 2,
)
PROMPTS = [random_prompt(length, vocab_size=VOCAB_SIZE, seed=length) for length in LENGTHS]


class Judge:
    """Compares the answers of a cell in one place."""

    def __init__(self, cell: Cell, oracle: Oracle) -> None:
        self._cell, self._oracle = cell, oracle
        self._agreements: list[float] = []

    def check(
        self, prompt: Sequence[int], answer: Sequence[int], logprobs: Sequence[float] | None = None
    ) -> None:
        """See `Oracle.check`."""
        precision = self._cell.precision
        self._agreements.append(self._oracle.check(precision, prompt, answer, logprobs))

    def outcome(self, run: Callable[[], None]) -> str:
        """Run, and say how the answers compare."""
        self._agreements = []
        try:
            run()
        except WrongAnswerError as error:
            return f"{DIFFERS}{error}"
        agreement = sum(self._agreements) / len(self._agreements)
        if agreement < KEPT * self._oracle.limits(self._cell.precision).agreement:
            return f"{DIFFERS}only {agreement:.0%} of the tokens are the most likely ones"
        return EQUAL
