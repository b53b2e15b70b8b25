"""Tiers below the blocks of several ranks: what a group keeps there, groups of any size go on with.

Models whose layers share one block table, and models with several.
"""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack, closing
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

from shared.engine.offload import offload
from shared.engine.offload.landings import LandingRefusal
from shared.engine.ranks.leader import RankLeader
from shared.engine.sequence.events import Failed
from shared.engine.settings.ranks import RankSettings
from shared.errors import RankError
from shared.kv.tier import BlockTier
from shared.model.random_checkpoint import CheckpointSpec
from shared.request.answer import FinishReason
from tests.fakes.checkpoints.folder import write_checkpoints
from tests.fakes.checkpoints.group_kinds import SPECS
from tests.fakes.engine.engines import drain, generate, make_request
from tests.fakes.engine.offload import Gate, offload_of, settle
from tests.fakes.ranks.engines import group_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from shared.engine.engine import Engine

    Leaders = Mapping[str, RankLeader | None]

BLOCK_SIZE = 16
NUM_BLOCKS = 4
NUM_TOKENS = NUM_BLOCKS * BLOCK_SIZE + 5
PROMPTS = [[(7 * p + 31 * n) % 290 + 3 for p in range(NUM_TOKENS)] for n in range(6)]
MODELS = {
    "plain": CheckpointSpec(num_layers=2, vocab_size=300),
    **{name: SPECS[name] for name in ("window", "state", "latent")},
}
#: Of a model, the groups that share a folder, in turn. Of its three layers with states and KV, the
#: second of two stages has states alone.
ORDERS = {
    "plain": ("alone", "tp 2", "alone"),
    "window": ("tp 2", "alone", "pp 2", "tp 2"),
    "state": ("tp 2, pp 2", "alone", "pp 2", "tp 2, pp 2"),
    "latent": ("pp 2", "tp 2"),
}
#: Four ranks share two cores with other tests: none is lost because it is late.
PATIENCE_S = 90
SIZES = {
    "tp 2": RankSettings(tensor_parallel_size=2, distributed_timeout_seconds=PATIENCE_S),
    "pp 2": RankSettings(pipeline_parallel_size=2, distributed_timeout_seconds=PATIENCE_S),
    "tp 2, pp 2": RankSettings(
        tensor_parallel_size=2, pipeline_parallel_size=2, distributed_timeout_seconds=PATIENCE_S
    ),
}
SETTINGS: dict[str, Any] = {
    "block_size": BLOCK_SIZE,
    "num_blocks": 12,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 48,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoints(tmp_path_factory.mktemp("tiers"), MODELS)


@pytest.fixture(autouse=True)
def _all_is_written_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "_FLUSH_S", float(PATIENCE_S))


@pytest.fixture(scope="module")
def leaders() -> Iterator[Leaders]:
    """By name: a group; None: this process alone."""
    with ExitStack() as stack:
        found: dict[str, RankLeader | None] = {"alone": None}
        for name, sizes in SIZES.items():
            leader = RankLeader(sizes)
            stack.callback(leader.close)
            found[name] = leader
        yield found


def tiers(disk: Path, host_gib: float = 0.001) -> dict[str, Any]:
    """The settings, with tiers."""
    return SETTINGS | {
        "kv_offload_always_load": True,
        "kv_offload_host_gib": host_gib,
        "kv_offload_disk_gib": 0.1,
        "kv_offload_disk_dir": str(disk),
    }


def counters(engine: Engine) -> list[dict[str, float]]:
    """Of host memory and of the disk."""
    stats = engine.stats().tiers
    return [stats[tier].counters for tier in (BlockTier.HOST, BlockTier.DISK)]


def needed(engine: Engine) -> list[int]:
    """The places of the blocks, of all groups, that go on with a prompt."""
    return list(chain.from_iterable(engine.layout.needed(0, NUM_BLOCKS)))


def ask(engine: Engine, number: int) -> tuple[list[int], int]:
    """The answer to a prompt, and how many of its blocks were found."""
    request = make_request("a", PROMPTS[number], max_tokens=4, ignore_eos=True)
    run = generate(engine, request)
    if engine.cached.offload is not None:
        settle(engine)  # what waits for a copy may lose its block to the next prompt
    engine.check_integrity()
    return run.tokens("a"), run.admitted("a")[-1].num_cached_tokens // BLOCK_SIZE


@pytest.mark.parametrize("name", MODELS)
def test_tiers_are_those_of_any_number_of_ranks(
    name: str, folder: Path, leaders: Leaders, tmp_path: Path
) -> None:
    """Each group finds on disk what all before it have left, and again what its pool has lost."""
    with group_of(None, folder / name, **SETTINGS) as alone:
        want = [ask(alone.engine, number)[0] for number in range(len(ORDERS[name]))]
    assert len({tuple(tokens) for tokens in want}) == len(want)
    for num_left, group in enumerate(ORDERS[name]):
        with group_of(leaders[group], folder / name, **tiers(tmp_path)) as home:
            refusal = offload_of(home.engine).landings.refusal
            assert (refusal is LandingRefusal.RANKS) == (group != "alone")
            #: The last one is new.
            found = [ask(home.engine, number) for number in range(num_left + 1)]
            (host, disk), own = counters(home.engine), len(needed(home.engine))
            assert disk["hits"] == disk["loads"] == num_left * own, group
            assert host["loads"] == num_left * own, group
            assert host["stores"] >= own, group
            again = ask(home.engine, 0)
            from_host = counters(home.engine)[0]["hits"] - host["hits"]
            assert from_host or num_left < 2, group
        assert [tokens for tokens, _ in found] == want[: num_left + 1], group
        assert [num for _, num in found] == [NUM_BLOCKS] * num_left + [0], group
        assert again == (want[0], NUM_BLOCKS), group


def crowd(engine: Engine) -> dict[str, list[int]]:
    """Answers to prompts with common beginnings, all at once."""
    for number in range(5):
        prompt = [*PROMPTS[number // 2][:BLOCK_SIZE], *PROMPTS[number][:2]]
        engine.add(make_request(f"{number}", prompt, max_tokens=28, ignore_eos=True))
    run = drain(engine)
    engine.check_integrity()
    return {name: run.tokens(name) for name in run.events}


@pytest.mark.parametrize(
    ("name", "group", "num_blocks"), [("window", "tp 2", 30), ("state", "pp 2", 20)]
)
def test_a_group_short_of_blocks_answers_as_one_process(
    name: str, group: str, num_blocks: int, folder: Path, leaders: Leaders, tmp_path: Path
) -> None:
    """Requests are preempted, and begin again with what host memory or the disk has of them."""
    small = {"block_size": 4, "num_blocks": num_blocks}
    with group_of(None, folder / name, **SETTINGS | {"num_blocks": 60}) as alone:
        want = crowd(alone.engine)
        assert not alone.engine.stats().counters["num_preemptions"]
    settings = tiers(tmp_path, host_gib=0.0003) | small
    with group_of(leaders[group], folder / name, **settings) as home:
        assert crowd(home.engine) == want
        assert home.engine.stats().counters["num_preemptions"]
        assert counters(home.engine)[0]["hits"]


def load_behind_gate(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> tuple[Gate, list[list[int]]]:
    """Begin to load a prompt that the pool has lost; no byte reaches a rank until it is let.

    Returns the answers to it and to those behind it, too.
    """
    answers = [ask(engine, number)[0] for number in range(4)]
    gate = Gate(engine, monkeypatch)
    engine.add(make_request("loads", PROMPTS[0], max_tokens=4, ignore_eos=True))
    engine.step()
    assert gate.reached.wait(30)
    assert engine.stats().num_loading == 1
    return gate, answers


def test_a_load_goes_on_when_its_request_is_aborted(
    folder: Path, leaders: Leaders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No rank's block gets another use before; what has arrived is as good as before."""
    with group_of(leaders["tp 2, pp 2"], folder / "state", **tiers(tmp_path)) as home:
        engine = home.engine
        gate, answers = load_behind_gate(engine, monkeypatch)
        engine.abort("loads")
        (end,) = engine.step()
        assert end.finish_reason is FinishReason.ABORT  # type: ignore[union-attr]
        stats = engine.stats()
        assert stats.num_free_blocks == stats.num_blocks - len(needed(engine))
        gate.open.set()
        settle(engine)
        engine.check_integrity()
        assert engine.stats().num_free_blocks == stats.num_blocks
        assert ask(engine, 0) == (answers[0], NUM_BLOCKS)


@pytest.mark.parametrize(("name", "group"), [("window", "tp 2"), ("state", "pp 2")])
def test_what_a_peer_asks_for_is_loaded_into_all_ranks(
    name: str, group: str, folder: Path, leaders: Leaders, tmp_path: Path
) -> None:
    """Connectors send from the pool of each rank."""
    with group_of(leaders[group], folder / name, **tiers(tmp_path)) as home:
        engine, told = home.engine, []
        answers = [ask(engine, number)[0] for number in range(4)]
        identity = make_request("a", PROMPTS[0]).identity(engine.namespace)
        hashes = identity.hash_blocks(PROMPTS[0], BLOCK_SIZE)
        assert not engine.prefix_cache.match(hashes).num_blocks
        engine.cached.promote(hashes, lambda: told.append(True))
        settle(engine)
        assert told == [True]
        assert engine.prefix_cache.match(hashes).num_blocks == NUM_BLOCKS
        before = counters(engine)[0]["loads"]
        # From the pool, as a peer would get it.
        assert ask(engine, 0) == (answers[0], NUM_BLOCKS)
        assert counters(engine)[0]["loads"] == before


def test_what_a_lost_group_has_kept_is_good(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank is lost while blocks are being loaded: its requests fail, its final blocks do not."""
    leader = RankLeader(RankSettings(tensor_parallel_size=2, distributed_timeout_seconds=4))
    settings = tiers(tmp_path) | {"num_blocks": 20}
    with closing(leader), group_of(leader, folder / "window", **settings) as home:
        gate, want = load_behind_gate(home.engine, monkeypatch)
        home.engine.add(make_request("runs", [5, 6, 7]))
        os.kill(leader.pids[0], signal.SIGKILL)
        events = []
        while home.engine.broken is None:
            events += home.engine.step()
        failed = [event for event in events if isinstance(event, Failed)]
        assert {event.request_id for event in failed} == {"loads", "runs"}
        assert all(isinstance(event.error, RankError) for event in failed)
        gate.open.set()
    with group_of(None, folder / "window", **settings) as alone:
        assert [ask(alone.engine, n) for n in range(4)] == [(each, NUM_BLOCKS) for each in want]
