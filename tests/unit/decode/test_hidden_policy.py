"""Hidden states are asked for where waiting for them is expected to cost little."""

from __future__ import annotations

import math

import pytest
from prometheus_client import CollectorRegistry

from baton.v1.prefill_pb2 import PrefillDone
from services.decode.hidden import HiddenOutcome, HiddenPolicy, states_counter
from shared.engine.prompt_hidden import HiddenFormat
from shared.engine.settings.speculation import SpeculationConfig
from shared.request.sampling_params import SamplingParams

#: Of a model with a hidden size of 4096 in bfloat16.
WANTED = HiddenFormat(
    layers=(), final=True, dtype="bfloat16", row_size=4096, row_bytes=8192, rows_per_block=128
)
SAMPLING = SamplingParams(max_tokens=100)
NUM_TOKENS = 1000


class Clock:
    """Stands still."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def policy_with(
    hand_off: str = "auto", clock: Clock | None = None, **fields: float
) -> HiddenPolicy:
    config = SpeculationConfig(
        method="eagle", model="head", num_speculative_tokens=3, hand_off=hand_off, **fields
    )
    return HiddenPolicy(
        WANTED,
        config,
        states_counter(CollectorRegistry()),
        tokens_per_step=2048,
        patience_s=4.0,
        clock=clock or Clock(),
    )


def wants(policy: HiddenPolicy, num_tokens: int = NUM_TOKENS) -> bool:
    wish = policy.wish(num_tokens, SAMPLING)
    assert wish is None or wish.format == WANTED
    return wish is not None


def learn(policy: HiddenPolicy, *, compute_ms: float, delay_ms: float) -> None:
    for _ in range(30):
        policy.computed(NUM_TOKENS, PrefillDone(compute_ms=compute_ms))
        policy.waited(HiddenOutcome.RECEIVED, NUM_TOKENS, delay_ms / 1e3)


def test_what_was_measured_decides() -> None:
    policy = policy_with()
    assert wants(policy)
    learn(policy, compute_ms=20.0, delay_ms=5.0)
    assert not wants(policy)
    learn(policy, compute_ms=200.0, delay_ms=5.0)
    assert wants(policy)


def test_what_came_too_late_counts_as_what_it_took() -> None:
    policy = policy_with()
    for _ in range(30):
        policy.computed(NUM_TOKENS, PrefillDone(compute_ms=20.0))
        policy.waited(HiddenOutcome.LATE, NUM_TOKENS, 0.01)
    assert not wants(policy)


def test_it_is_tried_again_when_measurements_are_old() -> None:
    clock = Clock()
    policy = policy_with(clock=clock)
    learn(policy, compute_ms=20.0, delay_ms=5.0)
    assert not wants(policy)
    clock.now_s = 3600.0
    assert wants(policy)


def test_only_the_last_step_s_states_are_waited_for() -> None:
    """So what they cost grows no longer where computing does."""
    policy = policy_with()
    learn(policy, compute_ms=40.0, delay_ms=5.0)
    assert not wants(policy)
    assert wants(policy, 100 * NUM_TOKENS)


@pytest.mark.parametrize("share", [0.0, 10.0])
def test_the_bound_is_a_setting(share: float) -> None:
    policy = policy_with(hand_off_max_delay=share)
    learn(policy, compute_ms=20.0, delay_ms=5.0)
    assert wants(policy) == (share > 0)
    patience_s = policy.patience_s(PrefillDone(compute_ms=20.0))
    assert math.isclose(patience_s, share * 0.02, abs_tol=1e-9)


def test_transfer_means_always() -> None:
    policy = policy_with("transfer")
    learn(policy, compute_ms=1.0, delay_ms=1000.0)
    assert wants(policy)
    assert policy.patience_s(PrefillDone(compute_ms=1.0)) == 4.0


def test_nobody_asks_for_an_answer_without_guesses() -> None:
    policy = policy_with("transfer")
    assert policy.wish(NUM_TOKENS, SamplingParams(max_tokens=2)) is None
    without = SamplingParams(max_tokens=100, num_speculative_tokens=0)
    assert policy.wish(NUM_TOKENS, without) is None


def test_what_was_cached_did_not_take_time() -> None:
    policy = policy_with()
    learn(policy, compute_ms=30.0, delay_ms=5.0)
    assert not wants(policy)
    for _ in range(30):
        policy.computed(10 * NUM_TOKENS, PrefillDone(compute_ms=60.0, cached_tokens=9 * NUM_TOKENS))
    assert wants(policy)
