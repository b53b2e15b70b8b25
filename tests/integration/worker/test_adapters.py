"""Adapters on workers: across the hand-off, loaded, replaced and taken away while streams run."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from baton.v1 import common_pb2, worker_pb2
from shared.directory.base import AdapterPlace
from shared.engine.llm import LLM
from shared.errors import (
    AdapterError,
    AdapterNotLoadedError,
    BatonError,
    InvalidRequestError,
    ModelNotFoundError,
)
from shared.rpc.status import from_rpc_error
from shared.worker.health.liveness import Watchdog
from shared.worker.join.joining import member_of
from tests.fakes.checkpoints.lora_folders import merge, write_lora
from tests.fakes.worker.live_worker import BLOCK_SIZE, LiveWorker, live_pair, live_worker
from tests.integration.worker.asking import assert_idle, eventually, expect, prompt_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

LEN = 3 * BLOCK_SIZE + 5
NUM_BLOCKS = 3
#: So many that requests of the same time still run when others have been loaded.
NUM_LONG = 160


@dataclass(frozen=True)
class Adapters:
    """Folders below one root, and engines whose weights have them merged; `base` has none."""

    root: Path
    oracles: dict[str, LLM]

    @property
    def names(self) -> list[str]:
        return [name for name in self.oracles if name != "base"]

    def expect(self, name: str, prompt: list[int], max_tokens: int = 8) -> tuple[int, ...]:
        return expect(self.oracles[name], prompt, max_tokens)


@pytest.fixture(scope="module")
def adapters(
    checkpoint: Path, oracle: LLM, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Adapters]:
    root = tmp_path_factory.mktemp("adapters")
    merged = tmp_path_factory.mktemp("merged")
    made = {"base": oracle}
    for seed, (name, targets) in enumerate(
        {"a": ("q_proj", "v_proj"), "b": ("k_proj", "o_proj", "up_proj", "down_proj")}.items()
    ):
        folder = write_lora(checkpoint, root / name, seed=seed, rank=5, targets=targets, std=0.3)
        made[name] = LLM(
            merge(checkpoint, folder, merged / name),
            dtype="float32",
            block_size=BLOCK_SIZE,
            num_blocks=256,
        )
    yield Adapters(root, made)
    for name in ("a", "b"):
        made[name].close()


async def load(
    worker: LiveWorker, name: str, path: Path | str, **fields: Any
) -> common_pb2.Adapter:
    """Order a worker to load one."""
    request = worker_pb2.LoadAdapterRequest(name=name, path=str(path), **fields)
    return (await worker.orders.LoadAdapter(request, timeout=30)).adapter


async def refs(worker: LiveWorker, own: Adapters) -> dict[str, common_pb2.Adapter | None]:
    """Load all on a worker; return what requests carry."""
    found: dict[str, common_pb2.Adapter | None] = {"base": None}
    for name in own.names:
        found[name] = await load(worker, name, own.root / name)
    return found


async def refused(call: Awaitable[Any]) -> BatonError:
    """The error that a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value, peer="w")


async def test_a_prompt_is_handed_over_with_its_adapter_and_shares_no_block(
    checkpoint: Path, adapters: Adapters, tmp_path: Path
) -> None:
    """The decode worker has only heard of the adapters by the requests."""
    prompt = prompt_of(LEN, seed=1)
    settings = {"lora_dir": adapters.root, "max_loras": 2}
    async with live_pair(checkpoint, tmp_path, "shm", **settings) as (prefill, decode):
        given = await refs(prefill, adapters)
        for num_cached in (0, LEN // BLOCK_SIZE * BLOCK_SIZE):
            for name, adapter in given.items():
                reply = await decode.ask(
                    prompt, max_tokens=20, prefill=prefill, adapter=adapter, request_id=name
                )
                assert reply.token_ids == adapters.expect(name, prompt, 20), name
                assert reply.usage.cached_tokens == num_cached, name
                assert reply.timings.prefill_worker == ("" if num_cached else "w0"), name
        answer = await decode.orders.ListAdapters(worker_pb2.ListAdaptersRequest())
        assert [each.adapter for each in answer.adapters] == [given["a"], given["b"]]
        assert answer.max_adapters == 2
        await assert_idle(prefill, decode)


async def test_a_mixed_batch_is_handed_over(
    checkpoint: Path, adapters: Adapters, tmp_path: Path
) -> None:
    """With guesses, too, and room for one adapter at a time."""
    settings = {
        "lora_dir": adapters.root,
        "max_loras": 1,
        "speculative_config": '{"method": "ngram", "num_speculative_tokens": 3}',
    }
    async with live_pair(checkpoint, tmp_path, "zmq", **settings) as (prefill, decode):
        given = await refs(prefill, adapters)
        wanted = [(name, prompt_of(20 + 7 * i, seed=i)) for i in range(4) for name in given]
        replies = await asyncio.gather(
            *(
                decode.ask(
                    prompt,
                    max_tokens=24,
                    prefill=prefill,
                    adapter=given[name],
                    request_id=f"{name}{len(prompt)}",
                )
                for name, prompt in wanted
            )
        )
        for (name, prompt), reply in zip(wanted, replies, strict=True):
            assert reply.token_ids == adapters.expect(name, prompt, 24), name
        await assert_idle(prefill, decode)


async def test_an_answer_goes_on_elsewhere_with_its_adapter(
    checkpoint: Path, adapters: Adapters, tmp_path: Path
) -> None:
    """As after the loss of a worker: prompt, what was emitted, and peers with the KV."""
    prompt = prompt_of(LEN, seed=3)
    settings = {"lora_dir": adapters.root}
    async with live_pair(checkpoint, tmp_path, "shm", **settings) as (first, second):
        given = await refs(first, adapters)
        for name, adapter in given.items():
            whole = adapters.expect(name, prompt, 40)
            begun = await first.ask(prompt, max_tokens=30, adapter=adapter)
            assert begun.token_ids == whole[:30]
            emitted = whole[:25]
            rest = await second.ask(
                prompt, first.source(4), max_tokens=40, resumed=emitted, adapter=adapter
            )
            assert (*emitted, *rest.token_ids) == whole, name
            assert rest.sources[2] == LEN, name  # all of the prompt's KV was fetched
        await assert_idle(first, second)


async def test_without_the_adapter_a_prefill_worker_is_not_used(
    checkpoint: Path, adapters: Adapters, tmp_path: Path
) -> None:
    prompt = prompt_of(LEN, seed=4)
    empty = tmp_path / "empty"
    empty.mkdir()
    async with AsyncExitStack() as stack:
        open_worker = partial(live_worker, checkpoint, runtime_dir=tmp_path)
        outside = await stack.enter_async_context(open_worker("outside", lora_dir=empty))
        without = await stack.enter_async_context(open_worker("without"))
        decode = await stack.enter_async_context(open_worker("decode", lora_dir=adapters.root))
        given = await refs(decode, adapters)
        for prefill in (outside, without):
            for number in range(4):  # more than a breaker lets fail
                reply = await decode.ask(
                    [number + 3, *prompt], prefill=prefill, adapter=given["a"], max_tokens=8
                )
                assert reply.token_ids == adapters.expect("a", [number + 3, *prompt])
                assert not reply.timings.prefill_worker
            reply = await decode.ask(prompt_of(LEN, seed=9 + len(prefill.address)), prefill=prefill)
            assert reply.timings.prefill_worker == prefill.parts.worker.name
            await decode.forget()
        error = await refused(outside.ask(prompt, adapter=given["a"]))
        assert isinstance(error, AdapterNotLoadedError)
        assert "not below --lora-dir" in str(error)
        error = await refused(without.ask(prompt, adapter=given["a"]))
        assert "serves no adapters" in str(error)
        await assert_idle(outside, without, decode)


async def test_an_older_prefill_worker_is_not_asked(
    checkpoint: Path, adapters: Adapters, tmp_path: Path
) -> None:
    """It would ignore the adapter, and send the base's KV."""
    prompt = prompt_of(LEN, seed=5)
    settings = {"lora_dir": adapters.root}
    async with live_pair(checkpoint, tmp_path, "shm", **settings) as (prefill, decode):
        given = await refs(decode, adapters)
        prefill.parts.peer_info.protocol.minor = 6
        reply = await decode.ask(prompt, prefill=prefill, adapter=given["b"])
        assert reply.token_ids == adapters.expect("b", prompt)
        assert not reply.timings.prefill_worker
        assert not (await prefill.orders.ListAdapters(worker_pb2.ListAdaptersRequest())).adapters


async def test_adapters_change_while_streams_run(
    checkpoint: Path, adapters: Adapters, tmp_path: Path
) -> None:
    """None fails and none changes: those that run keep what they began with."""
    root = tmp_path / "own"
    for name in adapters.names:
        shutil.copytree(adapters.root / name, root / name)
    settings = {"lora_dir": root, "max_loras": 1}
    async with live_pair(checkpoint, tmp_path, "shm", **settings) as (prefill, decode):
        first = await load(prefill, "sql", "a")
        assert await load(decode, "sql", "a") == first

        def ask(name: str, number: int, adapter: common_pb2.Adapter | None) -> Any:
            return decode.ask(
                prompt_of(20 + number, seed=number),
                max_tokens=NUM_LONG,
                prefill=prefill,
                adapter=adapter,
                request_id=f"{name}{number}",
            )

        began = [("a", i) for i in range(8)] + [("base", i) for i in range(8)]
        running = [asyncio.create_task(ask(n, i, first if n == "a" else None)) for n, i in began]
        await eventually(partial(_emits, decode))
        # The folder has another content from now on.
        shutil.rmtree(root / "a")
        shutil.copytree(root / "b", root / "a")
        assert await load(prefill, "sql", "a", load_inplace=True) != first
        second = await load(decode, "sql", "a", load_inplace=True)
        later = [("b", i) for i in range(8)]
        running += [asyncio.create_task(ask(name, i, second)) for name, i in later]
        await eventually(partial(_waits, decode))
        for worker in (prefill, decode):
            await worker.orders.UnloadAdapter(worker_pb2.UnloadAdapterRequest(name="sql"))
        for (name, i), reply in zip(began + later, await asyncio.gather(*running), strict=True):
            assert reply.token_ids == adapters.expect(name, prompt_of(20 + i, seed=i), NUM_LONG), (
                name
            )
        await assert_idle(prefill, decode)
        for worker in (prefill, decode):
            store = worker.parts.adapters.required()
            await eventually(partial(_is_empty, store.in_memory))
            store.check_integrity()
            assert store.names() == []


async def _emits(worker: LiveWorker) -> bool:
    return (await worker.load()).counters["generation_tokens"] > 20


async def _waits(worker: LiveWorker) -> bool:
    use = worker.parts.engine.stats().adapters
    return use is not None and bool(use.waiting)


async def _is_empty(held: Callable[[], set[bytes]]) -> bool:
    return not held()


async def test_orders_that_cannot_be_followed_change_nothing(
    checkpoint: Path, adapters: Adapters, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    shutil.copytree(adapters.root / "a", root / "a")
    (root / "link").symlink_to(adapters.root / "b")
    (root / "empty").mkdir()
    async with live_worker(checkpoint, "w", runtime_dir=tmp_path, lora_dir=root) as worker:
        for path, error, told in (
            (adapters.root / "b", InvalidRequestError, "not below --lora-dir"),
            ("../root/../../b", InvalidRequestError, "not below --lora-dir"),
            ("link", InvalidRequestError, "not below --lora-dir"),
            ("none", InvalidRequestError, "no folder"),
            ("", InvalidRequestError, "must be a folder"),
            ("empty", AdapterError, "adapter_config.json"),
        ):
            found = await refused(load(worker, "x", path))
            assert isinstance(found, error), path
            assert told in str(found)
        assert "model's name" in str(await refused(load(worker, checkpoint.name, "a")))
        found = await refused(load(worker, "x", "a", digest=bytes(32)))
        assert isinstance(found, AdapterNotLoadedError)
        unload = worker.orders.UnloadAdapter
        found = await refused(unload(worker_pb2.UnloadAdapterRequest(name="x")))
        assert isinstance(found, ModelNotFoundError)
        assert "there are none" in str(found)
        assert not (await worker.orders.ListAdapters(worker_pb2.ListAdaptersRequest())).adapters
        assert worker.parts.adapters.required().in_memory() == set()
        # The same content again is no change; another one has to be asked for.
        own = await load(worker, "x", "a")
        assert await load(worker, "x", "a") == own
        (root / "link").unlink()
        shutil.copytree(adapters.root / "b", root / "b")
        assert "loaded already" in str(await refused(load(worker, "x", "b")))
        reply = worker.orders.LoadAdapter(
            worker_pb2.LoadAdapterRequest(name="x", path="b", load_inplace=True)
        )
        assert (await reply).replaced == own
        stale = worker_pb2.UnloadAdapterRequest(name="x", digest=own.digest)
        assert isinstance(await refused(unload(stale)), ModelNotFoundError)


async def test_a_directory_and_prometheus_hear_of_them(
    checkpoint: Path, adapters: Adapters, tmp_path: Path
) -> None:
    async with live_worker(
        checkpoint, "w", runtime_dir=tmp_path, lora_dir=adapters.root, max_loras=1
    ) as worker:
        watchdog = Watchdog(worker.parts.engine.progress, stall_s=30)
        member = member_of(worker.parts, worker.address, watchdog)
        assert member.load().max_adapters == 1
        given = await refs(worker, adapters)
        assert _places(member.load) == {"a": AdapterPlace.KNOWN, "b": AdapterPlace.HOST}
        running = asyncio.create_task(
            worker.ask(prompt_of(LEN, seed=1), adapter=given["a"], max_tokens=300)
        )
        await eventually(partial(_runs, member.load))
        assert _places(member.load) == {"a": AdapterPlace.DEVICE, "b": AdapterPlace.KNOWN}
        labels = {
            "model_name": checkpoint.name,
            "running_lora_adapters": "a",
            "waiting_lora_adapters": "",
            "max_lora": "1",
        }
        metrics = worker.parts.metrics
        assert metrics.get_sample_value("baton_lora_requests_info", labels) == 1
        running.cancel()
        await asyncio.wait({running})
        (own,) = [each for each in member.load().adapters if each.adapter.name == "a"]
        assert own.rank == 5
        assert own.load_ms > 0
        await assert_idle(worker)


def _places(load: Callable[[], Any]) -> dict[str, AdapterPlace]:
    return {each.adapter.name: each.place for each in load().adapters}


async def _runs(load: Callable[[], Any]) -> bool:
    return any(each.num_running for each in load().adapters)
