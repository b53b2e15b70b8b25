"""Adapters over processes: loaded on all workers, handed off, replaced, and gone again."""

from __future__ import annotations

import itertools
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from baton_client import Baton, InvalidRequestError, ModelNotFoundError
from shared.engine.llm import LLM
from tests.e2e.asking import GREEDY, prompt_of, until
from tests.e2e.conftest import (
    BLOCK_SIZE,
    ENGINE_FLAGS,
    MAX_NUM_BATCHED_TOKENS,
    NUM_BLOCKS,
    add_decode,
)
from tests.e2e.oracle import expect
from tests.e2e.processes import Cluster
from tests.fakes.checkpoints.lora_folders import merge, write_lora

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NUM_TOKENS = 24
#: Of an answer that is not over when its worker is killed.
MANY_TOKENS = 200
WAIT_S = 60.0
#: An adapter of the workers' settings: no order of the router names it.
OWN = "own"
#: Longer than a chunk, so that it is handed off in several.
PROMPT = prompt_of(70, seed=5)


@dataclass(frozen=True)
class World:
    """A cluster, the root of its adapters, and what merged weights answer to PROMPT."""

    cluster: Cluster
    root: Path
    answers: dict[str, tuple[int, ...]]

    def expected(self, name: str) -> tuple[int, ...]:
        """The first NUM_TOKENS of them."""
        return self.answers[name][:NUM_TOKENS]

    def sdk(self) -> Baton:
        return Baton(f"127.0.0.1:{self.cluster.grpc_port}")

    def post(self, path: str, **body: Any) -> httpx.Response:
        url = f"{self.cluster.url}{path}"
        return httpx.post(url, json=body, trust_env=False, timeout=WAIT_S)

    def complete(self, name: str, prompt: list[int] = PROMPT) -> dict[str, Any]:
        """The whole reply."""
        asked = {"model": name, "prompt": prompt, "max_tokens": NUM_TOKENS, **GREEDY}
        response = self.post("/v1/completions", **asked, return_token_ids=True)
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    def tokens(self, name: str) -> tuple[int, ...]:
        reply = self.complete(name)
        assert reply["model"] == name
        return tuple(reply["choices"][0]["token_ids"])


@pytest.fixture(scope="module")
def world(
    checkpoint: Path, oracle: LLM, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("adapters")
    root = folder / "root"
    write_lora(checkpoint, root / "sql", seed=1)
    write_lora(checkpoint, root / "web", seed=2, rank=3, targets=("q_proj", "v_proj"), std=0.3)
    write_lora(checkpoint, folder / "outside", seed=3)
    (root / "link").symlink_to(folder / "outside")
    base = checkpoint.name
    answers = {base: expect(oracle, PROMPT, max_tokens=MANY_TOKENS, temperature=0.0)}
    for name in ("sql", "web"):
        merged = LLM(
            merge(checkpoint, root / name, folder / f"merged-{name}"),
            dtype="float32",
            block_size=BLOCK_SIZE,
            num_blocks=NUM_BLOCKS,
            max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        )
        answers[name] = expect(merged, PROMPT, max_tokens=MANY_TOKENS, temperature=0.0)
    assert len(set(answers.values())) == 3, "they answer alike"
    cluster = Cluster(checkpoint, folder)
    flags = ("--enable-lora", "--lora-dir", str(root), "--max-loras", "2", "--max-cpu-loras", "2")
    flags = (*flags, "--lora-modules", f"{OWN}={root / 'web'}")
    try:
        cluster.add_worker("prefill", "prefill-0", *ENGINE_FLAGS, *flags)
        for number in range(2):
            add_decode(cluster, f"decode-{number}", *flags)
        cluster.wait_ready(num_decode=2)
        yield World(cluster, root, answers)
    finally:
        codes = cluster.stop()
    assert {codes[name] for name in ("router", "prefill-0")} == {0}


def test_adapters_answer_as_merged_weights_in_any_company(world: World) -> None:
    base = world.cluster.model.name
    with world.sdk() as sdk:
        sdk.load_adapter("sql", "sql")
        answer = world.post("/v1/load_lora_adapter", lora_name="web", lora_path="web")
        assert answer.text == "Success: LoRA adapter 'web' added successfully."
        assert [(m.id, m.parent) for m in sdk.models()] == [
            (base, ""),
            (OWN, base),
            ("sql", base),
            ("web", base),
        ]
        with pytest.raises(InvalidRequestError, match="already been loaded"):
            sdk.load_adapter("web", "web")
    # The same prompt: no block of one is used by another.
    for name in (base, "sql", "web"):
        reply = world.complete(name)
        details = reply["usage"].get("prompt_tokens_details") or {}
        assert (name, details.get("cached_tokens", 0)) == (name, 0)
        assert reply["timings"]["prefill_worker"] == "prefill-0"
        assert tuple(reply["choices"][0]["token_ids"]) == world.expected(name)
    names = list(itertools.islice(itertools.cycle((base, "sql", "web", "sql")), 16))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(world.tokens, names))
    assert found == [world.expected(name) for name in names]


@pytest.mark.parametrize(
    ("path", "words"), [("../outside", "lora-dir"), ("link", "lora-dir"), ("none", "no folder")]
)
def test_a_folder_that_cannot_be_used_is_loaded_nowhere(
    world: World, path: str, words: str
) -> None:
    answer = world.post("/v1/load_lora_adapter", lora_name="bad", lora_path=path)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "BadRequestError")
    assert words in answer.json()["error"]["message"]
    missing = world.post("/v1/completions", model="bad", prompt="a")
    assert missing.status_code == 404
    assert "served: " in missing.json()["error"]["message"]


def test_a_name_is_replaced_and_taken_away_while_requests_run(world: World) -> None:
    base = world.cluster.model.name
    with world.sdk() as sdk, ThreadPoolExecutor(6) as pool:
        running = [pool.submit(world.tokens, name) for name in (base, "web", "sql") * 4]
        first = sdk.load_adapter("new", "sql")
        assert world.tokens("new") == world.expected("sql")
        second = sdk.load_adapter("new", "web", in_place=True)
        assert first != second
        assert world.tokens("new") == world.expected("web")
        for each, name in zip(running, (base, "web", "sql") * 4, strict=True):
            assert each.result() == world.expected(name)
        sdk.unload_adapter("new")
        with pytest.raises(ModelNotFoundError, match="served: "):
            sdk.generate(PROMPT, model="new", max_tokens=2)


def test_a_request_that_waits_gets_what_its_name_stands_for_then(world: World) -> None:
    """As after each step of a training: the folder is written anew, and read again."""
    step = world.root / "step"
    shutil.copytree(world.root / "sql", step)
    with world.sdk() as sdk, ThreadPoolExecutor(1) as pool:
        sdk.load_adapter("step", "step")
        assert world.post("/pause?mode=wait").status_code == 200
        late = pool.submit(world.tokens, "step")
        world.cluster.wait_metric("baton_num_requests_waiting", 1)
        shutil.rmtree(step)
        shutil.copytree(world.root / "web", step)
        sdk.load_adapter("step", "step", in_place=True)
        assert world.post("/resume").status_code == 200
        assert late.result() == world.expected("web")
        sdk.unload_adapter("step")


def test_names_outlast_sleep_and_new_weights(world: World, checkpoint: Path) -> None:
    """Requests with them come and wait, while no worker is there, and are answered."""
    cluster, stopped = world.cluster, threading.Event()

    def ask() -> set[tuple[int, ...]]:
        found = {world.tokens(OWN)}
        while not stopped.is_set():
            found.add(world.tokens(OWN))
        return found

    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(ask) for _ in range(2)]
        try:
            # The same weights: they begin other lives of all workers.
            update = {"path": str(checkpoint), "mode": "wait"}
            changed = httpx.post(f"{cluster.url}/update_weights", json=update, timeout=WAIT_S)
            assert changed.status_code == 200, changed.text
            assert world.post("/sleep?mode=wait").status_code == 200
            models = httpx.get(f"{cluster.url}/v1/models").json()["data"]
            assert OWN in {each["id"] for each in models}
            late = pool.submit(world.tokens, OWN)
            assert world.post("/wake_up").status_code == 200
        finally:
            stopped.set()
        for each in asking:
            assert each.result() == {world.expected("web")}
        assert late.result() == world.expected("web")
    cluster.wait_idle()


def test_an_answer_goes_on_after_its_decode_worker_was_killed(world: World) -> None:
    with world.sdk() as sdk:
        with sdk.stream_generate(PROMPT, model="sql", max_tokens=MANY_TOKENS, **GREEDY) as stream:
            pieces = [next(stream)]
            name = busy(world.cluster)
            os.kill(world.cluster.workers[name].popen.pid, 9)
            pieces += list(stream)
        found = tuple(token for piece in pieces for token in piece.token_ids)
        assert found == world.answers["sql"]
        world.cluster.workers[name].kill()
        # A worker that comes again has no adapter yet: the router has it load what there is.
        world.cluster.workers[name].start()
        world.cluster.wait_ready(num_decode=2)
        assert {world.tokens("web"), world.tokens("web")} == {world.expected("web")}


def busy(cluster: Cluster) -> str:
    """The decode worker that writes an answer."""
    found: list[str] = []

    def is_there() -> bool:
        found[:] = [each for each in ("decode-0", "decode-1") if cluster.load(each).num_running]
        return bool(found)

    until(is_there)
    [name] = found
    return name
