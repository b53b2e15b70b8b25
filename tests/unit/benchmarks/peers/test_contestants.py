"""A system that does not compute the model is not measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from benchmarks.peers.engines.process import PeerUnavailableError
from benchmarks.peers.run import contestants
from benchmarks.peers.run.contestants import EngineContestant
from benchmarks.peers.workers.wire import Many, Single

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.peers.engines.systems import Launch, System


class Engine:
    """Answers with the prompt's first token, or always with 0, as after a NaN."""

    def __init__(self, *, is_broken: bool) -> None:
        self._is_broken = is_broken

    def wait_ready(self, timeout_s: float) -> dict[str, Any]:
        return {"version": "1"}

    def one(self, prompt: Sequence[int], num_tokens: int, *, timeout_s: float) -> Single:
        token = 0 if self._is_broken else prompt[0]
        return Single(times_s=[0.1] * num_tokens, token_ids=[token] * num_tokens)

    def many(self, prompts: Sequence[Any], num_tokens: int, *, timeout_s: float) -> Many:
        return Many(elapsed_s=1.0, prefilled_s=0.5, num_tokens=2, num_by_then=1)


def load(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> dict[str, Any]:
    monkeypatch.setattr(contestants, "start", lambda system, launch: engine)
    contestant = EngineContestant(cast("System", None))
    return contestant.load(cast("Launch", None), "small")


def test_first_tokens_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(set(load(monkeypatch, Engine(is_broken=False))["first_tokens"])) > 1


def test_one_answer_to_all_prompts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PeerUnavailableError, match=r"token 0 .* does not compute small"):
        load(monkeypatch, Engine(is_broken=True))
