"""Cheap grammars are followed in the engine's thread, costly ones elsewhere, with equal tokens."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from shared.engine.grammar.backends.registry import create_backend
from shared.engine.grammar.compiler import GrammarCompiler
from shared.engine.grammar.cost import FAR_TOO_LATE_NS, LATE_NS, LATE_WINDOW
from shared.engine.grammar.host.compiled import HostedCompiled
from shared.engine.grammar.host.process import GrammarHost
from shared.engine.grammar.local import LocalCompiled
from shared.engine.grammar.stats import GrammarStats
from shared.engine.grammar.strikes import MAX_STRIKES, PERIOD_S, Strikes
from shared.engine.llm import LLM
from shared.engine.sequence.request import EngineRequest
from shared.engine.settings.choices import BackendName
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from shared.request.grammar.spec import GrammarKind, GrammarSpec
from shared.request.sampling_params import SamplingParams
from shared.text.token_table import TokenTable
from tests.unit.engine.grammar.engines import finish
from tests.unit.engine.grammar.hosting import ALL_HERE, make_placement
from tests.unit.engine.grammar.slow import COMPILE_S, Slow, SlowToCompile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from shared.engine.grammar.base import GrammarBackend
    from shared.engine.grammar.host.messages import Move
    from shared.engine.grammar.placement import Placement

DEADLINE_S = 120.0
PAIRS = GrammarSpec(kind=GrammarKind.REGEX, text=r"((ab|cd)-){12}")
SMALL = GrammarSpec(
    kind=GrammarKind.JSON_SCHEMA,
    text=json.dumps(
        {
            "type": "object",
            "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
            "required": ["name", "age"],
        }
    ),
)
BOMBS = {
    "endless": GrammarSpec(kind=GrammarKind.REGEX, text="((a{1,50}){1,50}){1,50}"),
    "wide": GrammarSpec(
        kind=GrammarKind.JSON_SCHEMA,
        text=json.dumps(
            {
                "type": "object",
                "properties": {f"p{place}": {"type": "string"} for place in range(2000)},
            }
        ),
    ),
}
NGRAM = json.dumps({"method": "ngram", "num_speculative_tokens": 4, "adaptive": False})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("placed")
    write_random_checkpoint(path, CheckpointSpec(num_layers=1, vocab_size=300))
    return path


class World:
    """An engine and its grammars, and what is said to the grammars' processes."""

    def __init__(self, llm: LLM, *, is_slow: bool) -> None:
        self.llm = llm
        table = TokenTable.of(llm.tokenizer, llm.engine.vocab_size)
        self.stats = GrammarStats()
        load: Callable[[], GrammarBackend] = partial(create_backend, BackendName.XGRAMMAR, table)
        self.placement: Placement = make_placement(
            BackendName.XGRAMMAR,
            table,
            limits=ALL_HERE,
            load=(lambda: Slow(load())) if is_slow else load,
            stats=self.stats,
        )
        llm.grammars.close()
        llm.grammars = GrammarCompiler(
            self.placement, cache_bytes=1 << 30, timeout_s=DEADLINE_S, stats=self.stats
        )

    def generate(self, spec: GrammarSpec = PAIRS, n: int = 1, **changes: Any) -> list[Any]:
        params = SamplingParams(**{"max_tokens": 60, "seed": 2, "grammar": spec} | changes)
        return list(self.llm.generate("go", params, n=n)[0].outputs)

    def begin(self, request_id: str) -> None:
        """What `generate()` asks for."""
        params = SamplingParams(
            max_tokens=60, seed=2, grammar=PAIRS, eos_token_ids=self.llm.tokenizer.eos_token_ids
        )
        request = EngineRequest(
            request_id=request_id,
            prompt_token_ids=tuple(self.llm.tokenizer.encode("go")),
            sampling=params,
        )
        self.llm.engine.add(self.llm.grammars.ready_now(request))

    def kill_process(self) -> None:
        [pid] = self.placement.pids
        os.kill(pid, signal.SIGKILL)
        while self.placement.pids:
            time.sleep(0.01)


@pytest.fixture(params=[False, True], ids=["synchronous", "overlapped"])
def make(model: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., World]]:
    made: list[LLM] = []

    def build(*, is_slow: bool = False, **options: Any) -> World:
        made.append(LLM(model, num_blocks=64, async_scheduling=request.param, **options))
        return World(made[-1], is_slow=is_slow)

    yield build
    for llm in made:
        llm.engine.check_integrity()
        llm.close()


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> list[Move]:
    """What the worker asks its grammar processes for."""
    said: list[Move] = []
    move = GrammarHost.move

    def note(host: GrammarHost, message: Move) -> None:
        said.append(message)
        move(host, message)

    monkeypatch.setattr(GrammarHost, "move", note)
    return said


def test_a_cheap_grammar_asks_no_other_process_for_masks(
    make: Callable[..., World], moves: list[Move]
) -> None:
    world = make()
    for spec in (PAIRS, SMALL):
        assert len(world.generate(spec, n=2)) == 2
    assert moves == []
    assert world.stats.num_masks > 50


@pytest.mark.parametrize(
    ("calls_ns", "is_costly"),
    [
        ([LATE_NS + 1], False),
        ([LATE_NS + 1, *[0] * LATE_WINDOW, LATE_NS + 1, *[0] * LATE_WINDOW], False),
        ([LATE_NS + 1, *[0] * (LATE_WINDOW - 1), LATE_NS + 1], True),
        ([FAR_TOO_LATE_NS + 1], True),
    ],
    ids=["once", "seldom", "again", "by far"],
)
def test_a_grammar_is_costly_if_it_is_late_again(
    table: TokenTable, calls_ns: list[int], is_costly: bool
) -> None:
    placement = make_placement(BackendName.XGRAMMAR, table, limits=ALL_HERE)
    try:
        placed = placement.place(PAIRS).result(DEADLINE_S)
        assert isinstance(placed, LocalCompiled)
        for took_ns in calls_ns:
            placed.took(took_ns)
        assert placed.is_costly == is_costly
    finally:
        placement.close()


@pytest.mark.parametrize("name", BOMBS)
def test_a_costly_grammar_stays_where_it_was_compiled(table: TokenTable, name: str) -> None:
    placement = make_placement(BackendName.XGRAMMAR, table)
    try:
        assert isinstance(placement.place(PAIRS).result(DEADLINE_S), LocalCompiled)
        assert isinstance(placement.place(BOMBS[name]).result(DEADLINE_S), HostedCompiled)
    finally:
        placement.close()


@pytest.mark.parametrize("options", [{}, {"speculative_config": NGRAM}], ids=["plain", "drafts"])
def test_a_grammar_that_becomes_slow_moves_with_the_same_tokens(
    make: Callable[..., World], moves: list[Move], options: dict[str, Any]
) -> None:
    want = make(**options).generate(n=3, temperature=1.0)
    assert moves == []
    world = make(is_slow=True, **options)
    assert world.generate(n=3, temperature=1.0) == want
    assert moves
    # New ones begin where the others have gone.
    num_before = len(moves)
    assert world.generate(n=3, temperature=1.0) == want
    assert min(len(move.token_ids) for move in moves[num_before:]) == 1
    assert len(moves) - num_before > 3 * 30


def test_killing_the_process_ends_no_answer_of_a_cheap_grammar(
    make: Callable[..., World],
) -> None:
    world = make()
    want = world.generate()
    # One has begun, another begins behind it.
    world.begin("first")
    world.llm.engine.step()
    world.kill_process()
    world.begin("second")
    tokens = finish(world.llm, "first", "second")
    [answer] = want
    assert tuple(tokens["second"]) == answer.token_ids
    assert len(tokens["first"]) >= len(answer.token_ids) - 2
    assert answer.token_ids[-len(tokens["first"]) :] == tuple(tokens["first"])
    assert world.stats.num_compiled == 1


def test_a_grammar_whose_process_has_ended_moves_to_the_next_one(
    make: Callable[..., World], moves: list[Move]
) -> None:
    want = make().generate()
    world = make(is_slow=True)
    [begun] = world.generate(max_tokens=3)
    assert begun.token_ids == want[0].token_ids[:3]
    assert moves == []
    world.kill_process()
    assert world.generate() == want
    assert moves


def test_an_owner_whose_grammars_are_late_again_and_again_is_hosted(
    make: Callable[..., World],
) -> None:
    world = make(is_slow=True)
    for number in range(MAX_STRIKES):
        world.generate(replace(PAIRS, text=rf"((ab|cd)-){{{12 + number}}}"))
    spec = replace(PAIRS, text="[ab]{9}")
    assert isinstance(world.placement.place(spec).result(DEADLINE_S), HostedCompiled)
    other = replace(spec, owner=b"other")
    assert isinstance(world.placement.place(other).result(DEADLINE_S), LocalCompiled)


def test_strikes_count_within_a_period_and_are_forgotten_after_one() -> None:
    now_s = 100.0
    strikes = Strikes(clock=lambda: now_s)
    for _ in range(MAX_STRIKES - 1):
        strikes.add(b"a")
    now_s += PERIOD_S + 1
    strikes.add(b"a")
    assert not strikes.is_out(b"a")
    for _ in range(MAX_STRIKES - 1):
        strikes.add(b"a")
    assert strikes.is_out(b"a")
    assert not strikes.is_out(b"b")
    now_s += PERIOD_S
    assert not strikes.is_out(b"a")


def test_compiling_here_is_paid_for_by_the_owner(table: TokenTable) -> None:
    stats = GrammarStats()
    placement = make_placement(
        BackendName.XGRAMMAR,
        table,
        limits=ALL_HERE,
        load=lambda: SlowToCompile(create_backend(BackendName.XGRAMMAR, table)),
        stats=stats,
    )
    placement.place(SMALL).result(DEADLINE_S)
    placement.close()
    assert stats.compile_s > COMPILE_S
