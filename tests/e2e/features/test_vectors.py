"""Vectors by real processes: equal to transformers', beside chat, and while workers are lost."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import httpx
import pytest
import torch
from torch.nn.functional import normalize

from baton.v1 import common_pb2, worker_pb2, worker_pb2_grpc
from baton_client import Baton
from shared.model.random_tokenizer import write_tokenizer
from shared.text.tokenizer import Tokenizer
from tests.e2e.conftest import ENGINE_FLAGS
from tests.e2e.processes import Cluster
from tests.fakes.checkpoints.adapters import adapted, save_adapter
from tests.unit.pooling.checkpoints import edit_json, put_json, put_modules, states, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VOCAB_SIZE, MAX_LEN = 280, 300
INSTRUCTION = "Instruct: given a question, find the passage that answers it. Query: "
TEXTS = ["a short text", "é: two bytes", INSTRUCTION + "why?", INSTRUCTION + "when was it, then?"]


class Embedder:
    """A tiny random checkpoint of an embedder, and transformers' model of it."""

    def __init__(self, folder: Path, name: str, kind: str) -> None:
        self.folder = folder
        self.model = write(folder, name, vocab_size=VOCAB_SIZE, max_position_embeddings=MAX_LEN)
        write_tokenizer(folder, VOCAB_SIZE, MAX_LEN)
        put_modules(folder, "Transformer", "Pooling", "Normalize")
        put_json(folder / "1_Pooling" / "config.json", {"pooling_mode": kind})
        self.tokenizer = Tokenizer.load(folder)
        self._kind = kind

    def vector(self, text: str, model: Any = None) -> torch.Tensor:
        """`model`: another one of transformers, in place of the checkpoint's."""
        rows = states(model or self.model, tuple(self.tokenizer.encode(text)))
        pooled = rows[-1] if self._kind == "lasttoken" else rows.mean(0)
        return normalize(pooled, dim=0)


def ask(cluster: Cluster, url: str = "/v1/embeddings", **body: Any) -> dict[str, Any]:
    response = httpx.post(cluster.url + url, json=body, timeout=60)
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


def check(cluster: Cluster, embedder: Embedder, texts: list[str]) -> dict[str, Any]:
    """Ask for the texts' vectors, and compare them with transformers'."""
    reply = ask(cluster, input=texts)
    for text, item in zip(texts, reply["data"], strict=True):
        found = torch.tensor(item["embedding"])
        assert torch.allclose(found, embedder.vector(text), atol=2e-5), text
    return reply


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    """As Qwen3-Embedding lies on disk."""
    folder = tmp_path_factory.mktemp("models") / "qwen3-embedding"
    folder.mkdir()
    embedder = Embedder(folder, "qwen3", "lasttoken")
    edit_json(folder / "config.json", architectures=["Qwen3ForCausalLM"], tie_word_embeddings=False)
    return embedder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where workers may find adapters."""
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def cluster(
    decoder: Embedder, root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """A router and two prefill workers: no decode worker."""
    made = Cluster(decoder.folder, tmp_path_factory.mktemp("vectors"))
    try:
        flags = (*ENGINE_FLAGS, "--enable-lora", "--lora-dir", str(root))
        for name in ("prefill-0", "prefill-1"):
            made.add_worker("prefill", name, *flags)
        made.wait_ready(num_prefill=2, num_decode=0)
        yield made
    finally:
        assert set(made.stop().values()) <= {0, -9}


def test_vectors_equal_transformers(cluster: Cluster, decoder: Embedder) -> None:
    check(cluster, decoder, TEXTS)
    # What the texts begin with is in a cache now.
    again = check(cluster, decoder, [*TEXTS, INSTRUCTION + "who?"])
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 2 * 64
    fewer = httpx.post(
        f"{cluster.url}/v1/embeddings", json={"input": "a", "dimensions": 10**4}, timeout=60
    )
    assert fewer.status_code == 400
    assert fewer.json()["error"]["param"] == "dimensions"


def test_adapters_beside_the_model(cluster: Cluster, decoder: Embedder, root: Path) -> None:
    """Loaded while the workers run; both workers make vectors of each at the same time."""
    config = {"task_type": "FEATURE_EXTRACTION", "target_modules": "all-linear", "r": 3}
    models: dict[str | None, Any] = {None: decoder.model}
    for seed, name in enumerate(("sql", "web")):
        models[name] = adapted(decoder.model, seed=seed, **config)
        save_adapter(models[name], root / name)
    with Baton(f"127.0.0.1:{cluster.grpc_port}") as sdk:
        sdk.load_adapter("sql", "sql")
        loaded = {"lora_name": "web", "lora_path": "web"}
        assert httpx.post(f"{cluster.url}/v1/load_lora_adapter", json=loaded).status_code == 200

        def vectors(name: str | None) -> None:
            for _ in range(2):
                reply = ask(cluster, input=TEXTS, **({"model": name} if name else {}))
                assert reply["model"] == (name or decoder.folder.name)
                for text, item in zip(TEXTS, reply["data"], strict=True):
                    found = torch.tensor(item["embedding"])
                    wanted = decoder.vector(text, models[name])
                    assert torch.allclose(found, wanted, atol=5e-5), (name, text)

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(vectors, models))
        found = sdk.embed([TEXTS[0]], model="web").vectors[0]
        wanted = decoder.vector(TEXTS[0], models["web"])
        assert torch.allclose(torch.tensor(found.numbers), wanted, atol=5e-5)
        sdk.unload_adapter("web")
    reply = httpx.post(f"{cluster.url}/v1/embeddings", json={"model": "web", "input": "a"})
    assert reply.status_code == 404
    assert "served: qwen3-embedding, sql" in reply.json()["error"]["message"]


def test_requests_wait_for_sleeping_workers(cluster: Cluster, decoder: Embedder) -> None:
    """With an adapter, too: its name outlasts the sleep."""
    before = ask(cluster, model="sql", input=TEXTS)["data"]
    assert httpx.post(f"{cluster.url}/sleep", timeout=60).status_code == 200
    assert httpx.get(f"{cluster.url}/ready").status_code == 503
    with ThreadPoolExecutor(2) as pool:
        plain = pool.submit(check, cluster, decoder, TEXTS)
        adapted_to = pool.submit(lambda: ask(cluster, model="sql", input=TEXTS)["data"])
        cluster.wait_metric("baton_num_requests_waiting", 2 * len(TEXTS))
        refused = httpx.post(f"{cluster.url}/v1/unload_lora_adapter", json={"lora_name": "sql"})
        assert refused.status_code == 503
        assert "prefill-0, prefill-1 sleep: wake them up first" in refused.text
        reset = httpx.post(f"{cluster.url}/reset_prefix_cache")
        assert reset.json() == {"success": True}
        assert httpx.post(f"{cluster.url}/wake_up", timeout=60).status_code == 200
        plain.result()
        assert adapted_to.result() == before


def test_an_embedder_writes_no_answers(cluster: Cluster) -> None:
    for url, body in (
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ):
        response = httpx.post(cluster.url + url, json=body, timeout=60)
        assert response.status_code == 400
        assert "makes vectors and no text" in response.json()["error"]["message"]
    check_prefers_prefill_alone(cluster, "prefill-1")


def check_prefers_prefill_alone(cluster: Cluster, worker: str) -> None:
    """Fail unless an order to write answers is refused by name, by the router and the worker."""
    order = {"worker": worker, "role": "decode"}
    response = httpx.post(f"{cluster.url}/v1/workers/prefer", json=order, timeout=60)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == f"{worker} serves prefill alone"
    kept = httpx.post(f"{cluster.url}/v1/workers/prefer", json=order | {"role": "prefill"})
    assert kept.json()["role"] == "prefill"
    with grpc.insecure_channel(cluster.addresses[worker]) as channel:
        stub = worker_pb2_grpc.WorkerStub(channel)
        with pytest.raises(grpc.RpcError, match=f"{worker} .*makes vectors") as refused:
            stub.Prefer(worker_pb2.PreferRequest(role=common_pb2.ROLE_DECODE), timeout=10)
    assert isinstance(refused.value, grpc.Call)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_no_vector_is_lost_with_a_worker(cluster: Cluster, decoder: Embedder) -> None:
    batches = [[f"text {i} of batch {n}, of some length" for i in range(40)] for n in range(6)]
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(check, cluster, decoder, batch) for batch in batches]
        asked[0].result()
        cluster.workers["prefill-0"].kill()
        for each in asked:
            each.result()
    check(cluster, decoder, TEXTS)


def test_an_encoder_s_vectors_equal_transformers(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("encoders") / "bert"
    folder.mkdir()
    embedder = Embedder(folder, "bert", "mean")
    cluster = Cluster(folder, tmp_path_factory.mktemp("encoder"))
    try:
        cluster.add_worker("prefill", "prefill-0", "--dtype", "float32")
        cluster.wait_ready(num_prefill=1, num_decode=0)
        reply = check(cluster, embedder, TEXTS)
        assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        check_orders(cluster, reply["data"][0]["embedding"])
        check_prefers_prefill_alone(cluster, "prefill-0")
        load = cluster.load("prefill-0")
        assert load.num_requests == 0
        assert cluster.workers["prefill-0"].stop() == 0
    finally:
        cluster.stop()


def check_orders(cluster: Cluster, vector: list[float]) -> None:
    """It pauses in each mode, and refuses by name what changes weights; it serves after both."""

    def post(url: str, **body: Any) -> httpx.Response:
        return httpx.post(f"{cluster.url}{url}", json=body, timeout=30)

    def same() -> bool:
        again = ask(cluster, input=TEXTS[0])["data"][0]["embedding"]
        return bool(torch.allclose(torch.tensor(again), torch.tensor(vector), atol=1e-5))

    for mode in ("wait", "abort", "keep"):
        assert post(f"/pause?mode={mode}").status_code == 200
        assert httpx.get(f"{cluster.url}/is_paused").json() == {"is_paused": True}
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(same)
            with pytest.raises(TimeoutError):
                waiting.result(0.1)
            assert post("/resume").status_code == 200
            assert waiting.result(30)
    assert httpx.get(f"{cluster.url}/is_paused").json() == {"is_paused": False}
    for url, body in (
        ("/sleep?level=1", {}),
        ("/update_weights", {"path": str(cluster.model)}),
        ("/start_profile", {}),
    ):
        refused = post(url, **body)
        assert refused.status_code == 400, refused.text
        assert "prefill-0" in refused.json()["error"]["message"]
        assert "reads whole texts" in refused.json()["error"]["message"]
        assert same()
    assert post("/wake_up").status_code == 200


def test_chat_and_vectors_share_a_worker(checkpoint: Path, tmp_path: Path) -> None:
    """Neither changes the other: the same numbers and tokens alone and together."""
    made = Cluster(checkpoint, tmp_path)
    flags = (*ENGINE_FLAGS, "--scheduling-policy", "priority")
    prompts = [f"{'one and the same beginning ' * 4}{i}" for i in range(6)]

    def answer(prompt: str) -> str:
        body = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "priority": -1}
        text: str = ask(made, "/v1/completions", **body)["choices"][0]["text"]
        return text

    def vector(prompt: str) -> list[float]:
        found: list[float] = ask(made, input=prompt, priority=5)["data"][0]["embedding"]
        return found

    try:
        made.add_worker(
            "prefill", "prefill-0", *flags, "--runner", "generate", "--convert", "embed"
        )
        made.add_worker("decode", "decode-0", *flags, "--local-prefill-threshold", "0")
        made.wait_ready()
        alone = [answer(prompt) for prompt in prompts], [vector(prompt) for prompt in prompts]
        httpx.post(f"{made.url}/reset_prefix_cache", timeout=30)
        with ThreadPoolExecutor(12) as pool:
            vectors = [pool.submit(vector, prompt) for prompt in prompts]
            answers = [pool.submit(answer, prompt) for prompt in prompts]
            together = [each.result() for each in answers], [each.result() for each in vectors]
        assert together[0] == alone[0]
        assert torch.allclose(torch.tensor(together[1]), torch.tensor(alone[1]), atol=1e-5)
        assert json.dumps(alone[1])
    finally:
        made.stop()
