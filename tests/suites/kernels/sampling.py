"""What every implementation of choosing tokens must do.

Run in this process for PyTorch, and as `python -m tests.suites.kernels.sampling` in one of its own
for Triton's interpreter.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from kernels.sampling import choose_tokens, reference
from kernels.sampling.drawing import Filters
from tests.fakes.kernels.interpreted import poisoned_empty, report
from tests.fakes.kernels.tensors import random

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

#: Each on its own, and together; `scale` makes distributions flat or peaked.
FILTERS: dict[str, dict[str, float]] = {
    "none": {},
    "greedy": {"temperature": 0.0},
    "cold": {"temperature": 0.3},
    "hot": {"temperature": 2.0},
    "one": {"top_k": 1},
    "few": {"top_k": 7},
    "many": {"top_k": 900},
    "all": {"top_k": 10**6},
    "least-mass": {"top_p": 1e-6},
    "half": {"top_p": 0.5},
    "most": {"top_p": 0.95},
    "nearly-all": {"top_p": 0.9999},
    "likely": {"min_p": 0.1},
    "likeliest": {"min_p": 1.0},
    "together": {"top_k": 60, "top_p": 0.8, "min_p": 0.02, "temperature": 1.4},
    "likely-of-few": {"top_k": 40, "min_p": 0.5},
    "cold-together": {"top_k": 300, "top_p": 0.7, "temperature": 0.4},
}
SHAPES = ((1, 1.0), (50, 3.0), (1000, 1.0), (5003, 2.5))
_DEFAULTS = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def make_filters(rows: list[Mapping[str, float]]) -> dict[str, Tensor]:
    """Tensors of one value per row."""
    dtypes = {"top_k": torch.int64}
    return {
        name: torch.tensor(
            [row.get(name, default) for row in rows], dtype=dtypes.get(name, torch.float32)
        )
        for name, default in _DEFAULTS.items()
    }


def choose(
    logits: Tensor, numbers: Tensor, filters: dict[str, Tensor], implementation: str
) -> Tensor:
    """With the logits left alone, and memory for results full of wrong numbers."""
    with poisoned_empty():
        return choose_tokens(logits.clone(), numbers, **filters, implementation=implementation)


def numbers_for(num: int, seed: int = 0) -> Tensor:
    """Uniform in [0, 1), with both ends among them."""
    numbers = torch.rand(num, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    numbers[:2] = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    return numbers.to(torch.get_default_device())


def check_against_reference(
    fields: Mapping[str, float], vocab_size: int, scale: float, implementation: str
) -> None:
    """The same tokens, but for numbers on the edge between two in another precision."""
    logits = random(5, vocab_size + 3)[:, :vocab_size] * scale  # rows that are not side by side
    logits[3, 5:] = float("-inf")
    numbers, filters = numbers_for(5), make_filters([fields] * 5)
    expected = choose(logits, numbers, filters, "reference")
    got = choose(logits, numbers, filters, implementation)
    for row in (got != expected).nonzero().squeeze(-1).tolist():
        assert on_an_edge(logits[row], float(numbers[row]), fields, int(got[row])), (
            f"row {row}: {int(got[row])}, not {int(expected[row])}"
        )


def on_an_edge(logits: Tensor, number: float, fields: Mapping[str, float], token: int) -> bool:
    """Whether a number, or a share of mass, that differs by 1e-5 gives this token."""
    for change in (-1e-5, 0.0, 1e-5):
        near = {**_DEFAULTS, **fields}
        if near["top_p"] < 1:
            near["top_p"] = min(max(near["top_p"] + change, 1e-9), 1 - 1e-9)
        filters = Filters(**make_filters([near]))
        scaled = logits.double() / near["temperature"]
        weights = (scaled - scaled.max()).exp() * reference.kept(scaled, filters, 0)
        end = float(weights[: token + 1].sum() / weights.sum())
        start = end - float(weights[token] / weights.sum())
        if weights[token] > 0 and start - 1e-5 <= number <= end + 1e-5:
            return True
    return False


def kept_tokens(logits: Tensor, fields: Mapping[str, float], implementation: str) -> set[int]:
    """All tokens that can come: numbers that step through a flat distribution hit each."""
    num = 2 * len(logits)
    numbers = (torch.arange(num, dtype=torch.float64) + 0.5) / num
    rows = logits.expand(num, -1)
    filters = make_filters([fields] * num)
    return set(choose(rows, numbers.to(logits.device), filters, implementation).tolist())


def check_ties(implementation: str) -> None:
    """Tokens with equal logits stay or go together."""
    logits = torch.tensor([2.0, 1.0, 0.0, 1.0, 1.0, -1.0])
    for fields, expected in (
        ({"top_k": 2, "temperature": 9.0}, {0, 1, 3, 4}),
        ({"top_k": 4, "temperature": 9.0}, {0, 1, 3, 4}),
        ({"top_k": 5, "temperature": 9.0}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.5}, {0, 1, 3, 4}),
        ({"top_p": 0.3}, {0}),
    ):
        assert kept_tokens(logits, fields, implementation) == expected
    assert kept_tokens(torch.zeros(6), {"top_k": 1}, implementation) == set(range(6))
    assert kept_tokens(torch.zeros(6), {"top_p": 0.01}, implementation) == set(range(6))


def check_exact_sets(implementation: str) -> None:
    """Every threshold of a row with distinct values, down to neighbours in floating point.

    The values rise, so the first token that can come is the least one that is kept.
    """
    near = torch.tensor([0.0, 1e-38, 2e-38, 1.0, 1 + 2**-23, 1 + 2**-22, -3.0])
    ends, counts = [0.0, 1 - 2**-53], range(1, 7)
    tokens = choose(
        near.expand(2 * len(counts), -1),
        torch.tensor(ends * len(counts), dtype=torch.float64),
        make_filters([{"top_k": top_k} for top_k in counts for _ in ends]),
        implementation,
    )
    assert tokens.tolist() == [token for top_k in counts for token in (6 - top_k, 5)]


def check_unusable_rows(implementation: str) -> None:
    """-1, whatever the filters are."""
    logits = random(6, 40)
    logits[1] = float("nan")
    logits[2, 7] = float("nan")
    logits[3] = float("-inf")
    logits[4, 9] = float("inf")
    for fields in (FILTERS["none"], FILTERS["greedy"], FILTERS["together"]):
        tokens = choose(logits, numbers_for(6), make_filters([fields] * 6), implementation)
        assert tokens[1:5].tolist() == [-1] * 4
        assert (tokens[[0, 5]] >= 0).all()


def check_neighbours(implementation: str) -> None:
    """A row's token does not depend on the rows beside it."""
    rows = list(FILTERS.values())
    logits, numbers = random(len(rows), 700) * 2, numbers_for(len(rows))
    together = choose(logits, numbers, make_filters(rows), implementation).tolist()
    alone = [
        choose(logits[i : i + 1], numbers[i : i + 1], make_filters([row]), implementation).item()
        for i, row in enumerate(rows)
    ]
    assert together == alone


def check_frequencies(fields: Mapping[str, float], num: int, implementation: str) -> None:
    """Pearson's chi-square over random numbers of a fixed seed."""
    logits = random(1, 12, seed=3)
    scaled = logits[0].double() / fields.get("temperature", 1.0)
    kept = reference.kept(scaled, Filters(**make_filters([fields])), 0)
    expected = (scaled - scaled.max()).exp() * kept
    expected = expected / expected.sum() * num
    numbers = numbers_for(num, seed=1)
    tokens = choose(logits.expand(num, -1), numbers, make_filters([fields] * num), implementation)
    counts = torch.bincount(tokens, minlength=12)
    assert counts[~kept].sum() == 0
    distance = ((counts - expected).square() / expected)[kept].sum()
    assert distance < 37.4  # 99.99 % at 11 degrees of freedom


def checks(
    implementation: str,
    *,
    num_draws: int,
    shapes: Sequence[tuple[int, float]] = SHAPES,
    counted: Sequence[str] = ("none", "hot", "few", "half", "likely", "together"),
) -> dict[str, Callable[[], None]]:
    """All of them by name.

    num_draws: of each row of `FILTERS` that `counted` names. shapes: sizes of vocabularies, and how
    far their logits spread.
    """
    found: dict[str, Callable[[], None]] = {
        "ties": partial(check_ties, implementation),
        "exact-sets": partial(check_exact_sets, implementation),
        "unusable-rows": partial(check_unusable_rows, implementation),
        "neighbours": partial(check_neighbours, implementation),
    }
    for name, fields in FILTERS.items():
        for vocab_size, scale in shapes:
            found[f"reference-{name}-{vocab_size}"] = partial(
                check_against_reference, fields, vocab_size, scale, implementation
            )
    for name in counted:
        found[f"frequencies-{name}"] = partial(
            check_frequencies, FILTERS[name], num_draws, implementation
        )
    return found


def interpreted() -> dict[str, Callable[[], None]]:
    """Of Triton. Which token a number gives is compared, and no frequency can be another then.

    A vocabulary is one tile, or two with an end that is not whole.
    """
    return checks("triton", num_draws=100, shapes=SHAPES[1::2], counted=("none",)) | {
        f"reference-{name}-1": partial(check_against_reference, FILTERS[name], 1, 1.0, "triton")
        for name in ("none", "greedy", "together")
    }


if __name__ == "__main__":
    report(interpreted())
