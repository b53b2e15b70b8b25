"""Drafts that are drawn: what is accepted has the target's distribution."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from shared.model.drafts.random_heads import write_sliced_checkpoint
from shared.model.loader import load_model
from tests.fakes.engine.engines import generate, make_engine, make_request
from tests.fakes.model.paged_driver import PagedDriver
from tests.fakes.model.transformers_models import random_model, save
from tests.unit.engine.drafts.conftest import Drafts

if TYPE_CHECKING:
    from pathlib import Path

    import torch


def chi_square_limit(num_degrees: int) -> float:
    """What 99.99 % stay below, by E. B. Wilson and M. M. Hilferty (1931)."""
    part = 2 / (9 * num_degrees)
    return float(num_degrees * (1 - part + 3.719 * part**0.5) ** 3)


def test_drawn_drafts_leave_the_distribution_as_it_is(tmp_path: Path) -> None:
    vocab, num = 6, 500
    sizes = {"vocab_size": vocab, "head_dim": 16, "num_hidden_layers": 3}
    save(random_model("llama", seed=4, std=0.2, **sizes), tmp_path / "target")
    write_sliced_checkpoint(tmp_path / "sliced", tmp_path / "target", 1)
    target = load_model(tmp_path / "target")
    drafts = Drafts(target, tmp_path / "target", tmp_path)
    prompt = [1, 2, 3]
    engine = make_engine(
        target,
        speculative_config=drafts.settings("sliced", options={"sample": True}),
        block_size=16,
        num_blocks=200,
        max_num_seqs=64,
    )
    params = {"temperature": 1.2, "top_k": 5, "max_tokens": 4, "ignore_eos": True}
    run = generate(engine, *(make_request(str(i), prompt, seed=i, **params) for i in range(num)))
    counts = dict.fromkeys(itertools.product(range(vocab), repeat=2), 0)
    for i in range(num):
        _, second, third, _ = run.tokens(str(i))
        counts[second, third] += 1
    driver = PagedDriver(target.model, block_size=16, chunk=64)
    expected = dict.fromkeys(counts, 0.0)
    for before in itertools.product(range(vocab), repeat=3):
        probs = driver_probs(driver, [*prompt, *before], params)
        weight = float(probs[2, before[0]] * probs[3, before[1]] * probs[4, before[2]])
        expected[before[1:]] += num * weight
    likely = [pair for pair, value in expected.items() if value >= 5]
    rest = set(counts) - set(likely)
    observed = [*(counts[pair] for pair in likely), sum(counts[pair] for pair in rest)]
    wanted = [*(expected[pair] for pair in likely), sum(expected[pair] for pair in rest)]
    if wanted[-1] < 1e-9:
        assert observed.pop() == 0
        wanted.pop()
    distance = sum((o - w) ** 2 / w for o, w in zip(observed, wanted, strict=True))
    assert distance < chi_square_limit(len(wanted) - 1)
    counters = engine.stats().counters
    assert (
        0 < counters["spec_decode_num_accepted_tokens"] < counters["spec_decode_num_draft_tokens"]
    )


def driver_probs(driver: PagedDriver, tokens: list[int], params: dict[str, Any]) -> torch.Tensor:
    logits = driver.score(tokens).double() / params["temperature"]
    floor = logits.topk(params["top_k"], dim=-1).values[:, -1:]
    return logits.masked_fill(logits < floor, float("-inf")).softmax(-1)
