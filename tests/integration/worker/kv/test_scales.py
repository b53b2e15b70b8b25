"""Keys and values with a checkpoint's scales are handed over without them, and to equals only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest
import torch
from transformers import AutoModelForCausalLM

from baton.v1 import transfer_pb2, transfer_pb2_grpc
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.fakes.checkpoints.kv_scales import own_name, rounded_logits, write_kv_scales
from tests.fakes.worker.live_worker import BLOCK_SIZE, LiveWorker, live_pair, live_worker
from tests.integration.worker.asking import assert_idle, prompt_of
from tests.unit.model.checkpoints import edit_tensors

if TYPE_CHECKING:
    from pathlib import Path

    import transformers

LAYERS, HEADS, HEAD_DIM = 2, 2, 22
#: Around a block, and more than three steps of 64 tokens.
LENGTHS = (17, 32, 33, 233)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plain")
    spec = CheckpointSpec(
        architecture="qwen3",
        num_layers=LAYERS,
        num_heads=6,
        num_kv_heads=HEADS,
        head_dim=HEAD_DIM,
        vocab_size=321,
    )
    write_random_checkpoint(path, spec)
    return path


@pytest.fixture(scope="module")
def oracle(plain: Path) -> transformers.PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)


@pytest.mark.parametrize(
    ("connector", "kind", "by_head"), [("shm", "fp8", True), ("zmq", "int8", False)]
)
async def test_a_hand_off_moves_codes_alone(
    connector: str,
    kind: str,
    by_head: bool,
    plain: Path,
    oracle: transformers.PreTrainedModel,
    tmp_path: Path,
) -> None:
    stored = write_kv_scales(plain, tmp_path / "stored", kind, by_head=by_head)

    def check(prompt: list[int], answer: tuple[int, ...]) -> None:
        logits = rounded_logits(oracle, stored, prompt, list(answer))
        assert list(answer) == logits.argmax(dim=-1).tolist()

    async with live_pair(stored, tmp_path, connector) as (prefill, decode):
        for length in LENGTHS:
            prompt = prompt_of(length, seed=length)
            reply = await decode.ask(prompt, max_tokens=20, prefill=prefill)
            check(prompt, reply.token_ids)
            assert reply.timings.prefill_worker == "w0"
            num_tokens = -(-length // BLOCK_SIZE) * BLOCK_SIZE
            assert reply.timings.transfer_bytes == num_tokens * LAYERS * 2 * HEADS * HEAD_DIM
        # A second turn: what the answer added is here.
        again = [*prompt, *reply.token_ids[:15], *prompt_of(30, seed=1)]
        reply = await decode.ask(again, max_tokens=20, prefill=prefill)
        check(again, reply.token_ids)
        assert reply.usage.cached_tokens >= 233 // BLOCK_SIZE * BLOCK_SIZE
        # A third: the prefix is fetched.
        await decode.forget()
        reply = await decode.ask(prompt, prefill.source(233 // BLOCK_SIZE), max_tokens=20)
        check(prompt, reply.token_ids)
        assert reply.sources[2] == 233 // BLOCK_SIZE * BLOCK_SIZE
        await assert_idle(prefill, decode)


async def refusal(ours: LiveWorker, theirs: LiveWorker) -> str:
    """What a worker says of the other's handshake."""
    stub: transfer_pb2_grpc.TransferAsyncStub = transfer_pb2_grpc.TransferStub(
        ours.parts.channels.get(theirs.address)
    )
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Handshake(transfer_pb2.HandshakeRequest(peer=ours.parts.peer_info), timeout=5)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    return str(refused.value.details())


@pytest.mark.parametrize(
    ("settings", "edits", "field"),
    [
        ({"kv_cache_dtype": "fp8"}, False, "layout.scales"),
        ({"kv_cache_dtype": "int8"}, False, "layout.dtype"),
        ({"kv_cache_dtype": "float32"}, False, "layout.dtype"),
        ({}, True, "model_fingerprint"),
    ],
)
async def test_others_are_refused_by_name(
    settings: dict[str, str],
    edits: bool,
    field: str,
    plain: Path,
    oracle: transformers.PreTrainedModel,
    tmp_path: Path,
) -> None:
    """A scale per token, another dtype, other scales: the decode worker computes the prompt."""
    stored = write_kv_scales(plain, tmp_path / "stored", "fp8")
    other = stored
    if edits:
        other = write_kv_scales(plain, tmp_path / "other", "fp8")
        edit_tensors(
            other / "model.safetensors", lambda tensors: tensors[own_name(1, "v")].mul_(1.0625)
        )
    async with (
        live_worker(stored, "w0", runtime_dir=tmp_path) as decode,
        live_worker(other, "w1", runtime_dir=tmp_path, **settings) as prefill,
    ):
        assert field in await refusal(decode, prefill)
        prompt = prompt_of(70, seed=3)
        await prefill.ask(prompt)
        assert not set(decode.hashes(prompt)) & set(prefill.hashes(prompt))
        reply = await decode.ask(prompt, max_tokens=8, prefill=prefill)
        logits = rounded_logits(oracle, stored, prompt, list(reply.token_ids))
        assert list(reply.token_ids) == logits.argmax(dim=-1).tolist()
        assert not reply.timings.connector
