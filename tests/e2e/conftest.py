"""Clusters and the in-process oracle that their answers are compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from shared.engine.llm import LLM
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.e2e.guarded import Guarded
from tests.e2e.processes import Cluster
from tests.e2e.session_clusters import stop_behind
from tests.fakes.security.keys import CLUSTER_TOKEN, cluster_token_file, keys_on_disk
from tests.fakes.servers.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

BLOCK_SIZE = 16
#: Small chunks, so that a prompt of some hundred tokens is computed and sent in several.
MAX_NUM_BATCHED_TOKENS = 64
NUM_BLOCKS = 256
ENGINE_FLAGS = (
    "--block-size", str(BLOCK_SIZE),
    "--num-blocks", str(NUM_BLOCKS),
    "--max-num-batched-tokens", str(MAX_NUM_BATCHED_TOKENS),
    "--dtype", "float32",
)  # fmt: skip


#: Of the cluster and the oracle; requests without arguments for it go without it.
PROCESSOR = "tests.fakes.engine.logits_processors:NoRepeat"

#: What routers and workers allow only if they are told to.
ALLOWED = ("--enable-prompt-embeds", "--enable-return-hidden-states")

#: Far less than the 60 s that a hand-off may take in all.
STALL_S = 1.5


def add_decode(cluster: Cluster, name: str = "decode-0", *flags: str, **more: Path) -> None:
    """A decode worker that hands every prompt on, soon loses patience, and has metrics."""
    cluster.add_worker(
        "decode", name, *ENGINE_FLAGS, "--local-prefill-threshold", "0",
        "--transfer-stall-s", str(STALL_S), "--metrics-port", str(free_port()), *flags, **more,
    )  # fmt: skip


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, Any, Any]:
    """See `session_clusters`."""
    result = yield
    stop_behind(("cluster", "guarded"), item, nextitem)
    return result


@pytest.fixture
def bare_cluster(checkpoint: Path, tmp_path: Path) -> Iterator[Cluster]:
    """A router; the test adds the workers, and may break them."""
    made = Cluster(checkpoint, tmp_path)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Odd sizes on purpose: 6 heads over 2 KV heads of 80."""
    path = tmp_path_factory.mktemp("models") / "tiny"
    spec = CheckpointSpec(
        architecture="qwen3",
        num_layers=2,
        hidden_size=96,
        num_heads=6,
        num_kv_heads=2,
        head_dim=80,
        intermediate_size=160,
        vocab_size=321,
        max_position_embeddings=2048,
        dtype="float32",
        seed=7,
    )
    write_random_checkpoint(path, spec)
    return path


@pytest.fixture(scope="session")
def oracle(checkpoint: Path) -> LLM:
    """One engine that does it all."""
    return LLM(
        checkpoint,
        dtype="float32",
        block_size=BLOCK_SIZE,
        num_blocks=NUM_BLOCKS,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        logits_processors=(PROCESSOR,),
        enable_return_hidden_states=True,
    )


@pytest.fixture(scope="session", params=["shm", "zmq"])
def cluster(
    request: pytest.FixtureRequest, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """One router, one prefill and one decode worker that share one connector."""
    connector = request.param
    folder = tmp_path_factory.mktemp(f"cluster-{connector}")
    cluster = Cluster(checkpoint, folder, router_flags=ALLOWED)
    try:
        own = ("--connectors", connector, "--logits-processors", PROCESSOR)
        flags = (*ENGINE_FLAGS, *own, *ALLOWED)
        cluster.add_worker("prefill", "prefill-0", *flags)
        cluster.add_worker("decode", "decode-0", *flags, "--local-prefill-threshold", "0")
        cluster.wait_ready()
        yield cluster
    finally:
        codes = cluster.stop()
    assert set(codes.values()) == {0}


@pytest.fixture(scope="session")
def guarded(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Tenants a and b, and the operators ops and ops2, in front of one worker of each kind."""
    folder = tmp_path_factory.mktemp("guarded")
    disk = keys_on_disk(folder)
    disk.add("ops2", "operator = true")
    cluster = Cluster(
        checkpoint,
        folder,
        router_flags=(
            "--api-keys",
            str(disk.path),
            "--log-level",
            "debug",
            "--responses-store",
            "memory",
        ),
        token=(cluster_token_file(folder), CLUSTER_TOKEN),
        operator_key=disk.keys["ops"],
    )
    try:
        flags = (*ENGINE_FLAGS, "--connectors", "zmq", "--log-level", "debug")
        cluster.add_worker("prefill", "prefill-0", *flags)
        cluster.add_worker("decode", "decode-0", *flags, "--local-prefill-threshold", "0")
        cluster.wait_ready()
        yield Guarded(cluster, disk)
    finally:
        codes = cluster.stop()
    assert set(codes.values()) == {0}
