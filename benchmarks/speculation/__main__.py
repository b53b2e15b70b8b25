"""`python -m benchmarks.speculation` measures decoding with and without speculation.

One engine per model and method; its requests ask for guesses, or for none, in turn, so that both
see the same machine. The numbers are medians over the rounds of output tokens per second, prompts
cached. `--page FILE` writes the table.
"""

from __future__ import annotations

import argparse
import gc
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Console

from benchmarks.peers.models import MODELS
from benchmarks.speculation.following import following_folder, sliced_folder, successors
from benchmarks.speculation.workloads import WORKLOADS
from shared.engine.llm import LLM
from shared.request.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

#: Suffix decoding without past answers: from the second round on they would be the answer itself.
METHODS: dict[str, dict[str, object]] = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 5},
    "suffix": {
        "method": "suffix",
        "num_speculative_tokens": 12,
        "suffix_decoding_max_cached_requests": 0,
    },
    "draft_model": {"method": "draft_model", "num_speculative_tokens": 4},
}
_HEADER = (
    "| model | workload | batch | method | without, tokens/s | with, tokens/s | ratio "
    "| slowest round | drafted | accepted | tokens per draft |"
)


@dataclass(slots=True)
class Row:
    """One workload at one batch size with one method."""

    model: str
    workload: str
    batch: int
    method: str
    without: list[float] = field(default_factory=list)
    with_guesses: list[float] = field(default_factory=list)
    num_drafts: int = 0
    num_drafted: int = 0
    num_accepted: int = 0

    def cells(self) -> list[str]:
        """Return the cells of the page's row."""
        ratios = [b / a for a, b in zip(self.without, self.with_guesses, strict=True)]
        length = 1 + self.num_accepted / self.num_drafts if self.num_drafts else 1.0
        share = f"{100 * self.num_accepted / self.num_drafted:.0f} %" if self.num_drafted else "–"
        return [
            self.model,
            self.workload,
            str(self.batch),
            self.method,
            f"{median(self.without):.1f}",
            f"{median(self.with_guesses):.1f}",
            f"{median(self.with_guesses) / median(self.without):.2f}",
            f"{min(ratios):.2f}",
            str(self.num_drafted),
            share,
            f"{length:.2f}",
        ]


def measure(
    name: str, method: str, batches: Sequence[int], *, rounds: int, num_tokens: int
) -> list[Row]:
    """All workloads. Raises RuntimeError if an answer is not as foreseen."""
    folder, following = following_folder(name), successors(MODELS[name].vocab_size)
    config = METHODS[method]
    if method == "draft_model":
        config = {**config, "model": str(sliced_folder(name))}
    rows = []
    for workload, make in WORKLOADS.items():
        for batch in batches:
            # A new engine: it has not learned yet whether guessing pays.
            llm = LLM(
                folder,
                max_num_seqs=max(batches),
                num_blocks=1 + batch * (12 * num_tokens // 16 + 4),
                speculative_config=config,
            )
            prompts = [make(following, num_tokens, i) for i in range(batch)]
            expected = [_foreseen(following, prompt[-1], num_tokens) for prompt in prompts]
            row = Row(name, workload, batch, method)
            _run(llm, prompts, expected, guess=False)
            for _ in range(rounds):
                row.without.append(_run(llm, prompts, expected, guess=False))
                before = _counters(llm)
                row.with_guesses.append(_run(llm, prompts, expected, guess=True))
                grown = [b - a for a, b in zip(before, _counters(llm), strict=True)]
                row.num_drafts += grown[0]
                row.num_drafted += grown[1]
                row.num_accepted += grown[2]
            llm.close()
            del llm
            gc.collect()
            rows.append(row)
    return rows


def _foreseen(following: NDArray[np.int64], token_id: int, num_tokens: int) -> tuple[int, ...]:
    found = []
    for _ in range(num_tokens):
        token_id = int(following[token_id])
        found.append(token_id)
    return tuple(found)


def _run(
    llm: LLM, prompts: list[list[int]], expected: list[tuple[int, ...]], *, guess: bool
) -> float:
    """Run the prompts once; return output tokens per second."""
    sampling = SamplingParams(
        max_tokens=len(expected[0]),
        temperature=0.0,
        ignore_eos=True,
        num_speculative_tokens=None if guess else 0,
    )
    start_s = time.perf_counter()
    outputs = llm.generate(prompts, sampling)
    took_s = time.perf_counter() - start_s
    if [output.outputs[0].token_ids for output in outputs] != expected:
        raise RuntimeError("the model does not say what it was made to say")
    return sum(map(len, expected)) / took_s


def _counters(llm: LLM) -> list[int]:
    counters = llm.engine.stats().counters
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    return [counters[f"spec_decode_{name}"] for name in names]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speculation")
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=["small", "medium"])
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS), default=list(METHODS))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=192, help="per answer")
    parser.add_argument("--page", type=Path, help="write the table here")
    options = parser.parse_args()
    lines = [_HEADER, "|" + "---|" * (_HEADER.count("|") - 1)]
    console = Console(width=200)
    for line in lines:
        console.print(line, markup=False)
    for name in options.models:
        for method in options.methods:
            for row in measure(
                name, method, options.batches, rounds=options.rounds, num_tokens=options.tokens
            ):
                lines.append(f"| {' | '.join(row.cells())} |")
                console.print(lines[-1], markup=False)
    if options.page is not None:
        options.page.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
