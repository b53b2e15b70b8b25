"""KV comes by layers where it was worth waiting for, and is measured as a whole now and then."""

from __future__ import annotations

import pytest

from baton.v1 import prefill_pb2
from services.decode.layer_choice import WORTH_IT, LayerChoice, LayerMode
from services.decode.prefill_attempt import HandOffReport
from shared.identity import WorkerId

ONE, OTHER = WorkerId("one", "1"), WorkerId("other", "1")


def report(share: float) -> HandOffReport:
    done = prefill_pb2.PrefillDone(compute_ms=200)
    return HandOffReport(done=done, exposed_ms=200 * share)


@pytest.mark.parametrize(("mode", "wants"), [(LayerMode.ON, True), (LayerMode.OFF, False)])
def test_what_is_said_is_done(mode: LayerMode, wants: bool) -> None:
    choice = LayerChoice(mode)
    for share in (0.0, 0.9):
        choice.learn(ONE, report(share), by_layers=False)
        assert choice.wants_layers(ONE) is wants


def test_it_is_chosen_by_worker_where_the_wait_is_long() -> None:
    choice = LayerChoice(LayerMode.AUTO)
    assert not choice.wants_layers(ONE)
    choice.learn(ONE, report(WORTH_IT + 0.01), by_layers=False)
    choice.learn(OTHER, report(WORTH_IT - 0.01), by_layers=False)
    assert choice.wants_layers(ONE)
    assert not choice.wants_layers(OTHER)
    assert not choice.wants_layers(WorkerId("one", "2"))


def test_waits_of_hand_offs_by_layers_do_not_count_and_one_as_a_whole_comes_again() -> None:
    choice = LayerChoice(LayerMode.AUTO)
    choice.learn(ONE, report(0.5), by_layers=False)
    num_by_layers = 0
    while choice.wants_layers(ONE):
        choice.learn(ONE, report(0.0), by_layers=True)
        num_by_layers += 1
        assert num_by_layers < 100
    assert num_by_layers > 10
    choice.learn(ONE, report(0.4), by_layers=False)
    assert choice.wants_layers(ONE)
    for _ in range(20):
        choice.learn(ONE, report(0.0), by_layers=False)
    assert not choice.wants_layers(ONE)
