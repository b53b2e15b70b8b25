"""Native codes and rounded inputs across the hand-off: the tokens of one engine alone."""

from __future__ import annotations

from operator import eq
from typing import TYPE_CHECKING

import pytest
from gguf import GGMLQuantizationType as Type
from safetensors.torch import save_file

from shared.engine.llm import LLM
from shared.gguf.folder import model_folder
from tests.fakes.checkpoints.gguf import export
from tests.fakes.model.transformers_models import random_model, save
from tests.fakes.stored.answers import Meaning
from tests.fakes.stored.base import quantise_checkpoint
from tests.fakes.stored.cases import WITH_INPUTS
from tests.fakes.stored.hqq import Hqq
from tests.fakes.stored.models import FAMILIES, wants_of
from tests.fakes.worker.live_worker import BLOCK_SIZE, MAX_NUM_BATCHED_TOKENS, live_pair
from tests.integration.worker.asking import assert_idle, expect, prompt_of

if TYPE_CHECKING:
    from pathlib import Path

#: More than a block, and more than three steps.
LENGTHS = (BLOCK_SIZE + 1, 3 * MAX_NUM_BATCHED_TOKENS + 5)
NATIVE = {"attention_backend": "native"}
#: Rows that K-quants can have.
WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "head_dim": 64}
SIZES = {"Q4_0": {}, "Q4_K_M": WIDE}


async def answers(
    model: Path, folder: Path, settings: dict[str, str]
) -> list[tuple[list[int], list[int]]]:
    """Prompts with what a pair of workers answers, after comparison with one engine."""
    oracle = LLM(
        model,
        dtype="float32",
        block_size=BLOCK_SIZE,
        num_blocks=64,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        **settings,
    )
    found: list[tuple[list[int], list[int]]] = []
    async with live_pair(model, folder, "shm", model_settings=settings) as (prefill, decode):
        for length in LENGTHS:
            prompt = prompt_of(length, seed=length)
            reply = await decode.ask(prompt, max_tokens=20, prefill=prefill)
            assert reply.token_ids == expect(oracle, prompt, 20)
            assert reply.timings.prefill_worker == "w0"
            found.append((prompt, list(reply.token_ids)))
        again = [*prompt, *reply.token_ids[:15], *prompt_of(30, seed=1)]
        reply = await decode.ask(again, max_tokens=20, prefill=prefill)
        assert reply.token_ids == expect(oracle, again, 20)
        assert reply.usage.cached_tokens >= length // BLOCK_SIZE * BLOCK_SIZE
        found.append((again, list(reply.token_ids)))
        await assert_idle(prefill, decode)
    oracle.close()
    return found


@pytest.mark.parametrize("case", ["ct w8a8", "ct fp8 tokens", "fp8 blocks", "ct mxfp4 inputs"])
async def test_rounded_inputs_are_handed_over_as_transformers_rounds_them(
    case: str, tmp_path: Path
) -> None:
    model_type, sizes = FAMILIES["qwen2"]
    plain = save(random_model(model_type, seed=3, **sizes), tmp_path / "plain")
    writer = WITH_INPUTS[case]
    dense = quantise_checkpoint(plain, tmp_path / "stored", writer, wants_of(plain))
    save_file(dense, plain / "model.safetensors", metadata={"format": "pt"})
    # A sum in another order may round an input to its neighbour.
    (prompt, answer), *_ = await answers(tmp_path / "stored", tmp_path, NATIVE)
    theirs = Meaning(plain, writer).logits(prompt, answer).argmax(dim=-1).tolist()
    assert sum(map(eq, theirs, answer)) >= 0.5 * len(answer)


async def test_weights_with_zeros_of_floats_are_handed_over(tmp_path: Path) -> None:
    """They become dense while they are loaded."""
    model_type, sizes = FAMILIES["qwen2"]
    plain = save(random_model(model_type, seed=3, **sizes), tmp_path / "plain")
    writer = Hqq()
    dense = quantise_checkpoint(plain, tmp_path / "stored", writer, wants_of(plain))
    save_file(dense, plain / "model.safetensors", metadata={"format": "pt"})
    for prompt, answer in await answers(tmp_path / "stored", tmp_path, NATIVE):
        theirs = Meaning(plain).logits(prompt, answer)
        assert theirs.argmax(dim=-1).tolist() == answer


@pytest.mark.parametrize("kind", SIZES)
async def test_codes_of_4_bits_are_handed_over_with_rows_of_8(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.gguf.folder.cache_dir", lambda: tmp_path)
    plain = save(
        random_model("llama", seed=3, **SIZES[kind]),
        tmp_path / "plain",
    )

    def type_of(name: str, _: object) -> Type:
        if kind == "Q4_0":
            return Type.Q4_0
        return Type.Q6_K if "v_proj" in name or "down_proj" in name else Type.Q4_K

    model = model_folder(export(plain, tmp_path / "model.gguf", kind=type_of))
    await answers(model, tmp_path, {**NATIVE, "cpu_int4_compute": "int8"})
