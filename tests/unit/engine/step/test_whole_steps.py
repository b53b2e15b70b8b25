"""Steps that the native library computes in one call have the tokens of those in pieces."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from shared.identity import Role
from shared.model.loader import load_model
from shared.model.native.model import NativeCausalLM
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.fakes.engine.engines import BLOCK_SIZE, Run, drain, make_engine, make_request

if TYPE_CHECKING:
    from pathlib import Path

    from shared.engine.engine import Engine

VOCAB = 321
#: One for each way of a row: greedy, drawn, filtered, and with what the host must know.
PARAMS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "seed": 6},
    {"temperature": 1.3, "min_p": 0.05, "seed": 7},
)
ON_HOST: dict[str, Any] = {"temperature": 0.9, "seed": 8, "logprobs": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    write_random_checkpoint(folder, CheckpointSpec(vocab_size=VOCAB, seed=3))
    return folder


@pytest.fixture
def loaded(folder: Path) -> Any:
    return load_model(folder, dtype="float32", attention_backend="native")


def prompt(number: int, length: int) -> list[int]:
    return [(31 * i + 7 * number) % (VOCAB - 10) + 5 for i in range(length)]


def run(engine: Engine, *, on_host: bool) -> dict[str, list[int]]:
    """The answers to requests that come and go: rows and blocks are taken over, tables grow."""
    done = Run()
    params = [*PARAMS, ON_HOST] if on_host else PARAMS
    for number in range(14):
        own = params[number % len(params)]
        length, most = 3 * number + 1, 5 + 4 * (number % 4)
        request = make_request(
            f"{number}", prompt(number, length), max_tokens=most, ignore_eos=True, **own
        )
        engine.add(request)
        for _ in range(number % 5):
            for event in engine.step():
                done.events[event.request_id].append(event)
            engine.check_integrity()
    drain(engine, done)
    return {f"{number}": done.tokens(f"{number}") for number in range(14)}


def run_alone(engine: Engine) -> dict[str, list[int]]:
    """The answers to requests that take over the row of the last one, with a step like its last."""
    done = Run()
    for number, own in enumerate(PARAMS):
        engine.add(make_request(f"{number}", [9], max_tokens=6, ignore_eos=True, **own))
    drain(engine, done)
    return {f"{number}": done.tokens(f"{number}") for number in range(len(PARAMS))}


class Counts:
    """How often a model computes logits by a call of their own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_alone = 0
        real = NativeCausalLM.compute_logits

        def counting(model: NativeCausalLM, hidden: Any) -> Any:
            self.num_alone += 1
            return real(model, hidden)

        monkeypatch.setattr(NativeCausalLM, "compute_logits", counting)


@pytest.mark.parametrize("on_host", [False, True], ids=["plain", "mixed"])
def test_tokens_are_those_of_steps_in_pieces(
    loaded: Any, monkeypatch: pytest.MonkeyPatch, *, on_host: bool
) -> None:
    counts = Counts(monkeypatch)
    settings: dict[str, Any] = {"max_num_seqs": 4, "num_blocks": 200, "block_size": BLOCK_SIZE}
    # An overlapped engine feeds tokens on the device, so that it computes steps in pieces.
    with closing(make_engine(loaded, async_scheduling=True, **settings)) as engine:
        expected = run(engine, on_host=on_host)
    num_in_pieces, counts.num_alone = counts.num_alone, 0
    assert num_in_pieces > 40
    with closing(make_engine(loaded, async_scheduling=False, **settings)) as engine:
        assert run(engine, on_host=on_host) == expected
    assert (counts.num_alone > 0) == on_host


def test_a_row_s_next_sequence_has_parameters_of_its_own(loaded: Any) -> None:
    answers = []
    for overlapped in (True, False):
        settings: dict[str, Any] = {"async_scheduling": overlapped, "max_num_seqs": 1}
        with closing(make_engine(loaded, **settings)) as engine:
            answers.append(run_alone(engine))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("role", [None, Role.DECODE], ids=["whole", "parts"])
def test_steps_in_pieces_use_the_logits_memory_of_whole_ones(
    loaded: Any, role: Role | None
) -> None:
    with closing(make_engine(loaded)) as engine:
        engine.add(make_request("plain", prompt(1, 8), max_tokens=3, ignore_eos=True))
        drain(engine)
        engine.prefer(role)  # with one, prompts alone are computed in parts
        engine.add(make_request("b", prompt(2, 9), max_tokens=1, **({} if role else ON_HOST)))
        assert len(drain(engine).tokens("b")) == 1
    assert len(loaded.model._logits._kept) == 1
