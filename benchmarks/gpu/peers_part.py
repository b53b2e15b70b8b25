"""P1: transformers on the same shape: continuous batching, and a static cache, compiled."""

from __future__ import annotations

import importlib
import time
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.gpu.model import raw_config

if TYPE_CHECKING:
    from benchmarks.gpu.bench import Bench


def measure_peers(bench: Bench) -> None:
    """Both rows, or why there is none. A peer's time is for the whole run, its prefill included."""
    models: list[Any] = []
    batch, prompt, new = bench.pick((64, 1024, 128), (2, 12, 4))

    def batched() -> float:
        models.append(_make_model(bench))
        return _generate_batch(bench, models[0], batch, prompt, new)

    row = bench.report.measure(
        "P1", f"generate_batch (paged|sdpa) B{batch} {prompt}→{new}", batched
    )
    if row.seconds:
        bench.report.note("P1", "generate_batch tokens/s", f"{batch * new / row.seconds:.0f}")
    row = bench.report.measure(
        "P1", f"generate, static cache, B1 {prompt}→{new}",
        lambda: _static(bench, models[0] if models else _make_model(bench), prompt, new),
    )  # fmt: skip
    if row.seconds:
        bench.report.note("P1", "static cache tokens/s", f"{new / row.seconds:.0f}")


def _make_model(bench: Bench) -> Any:
    transformers: Any = importlib.import_module("transformers")
    shape = {k: v for k, v in raw_config(bench).items() if k not in ("architectures", "model_type")}
    config = transformers.LlamaConfig(**shape)
    torch.manual_seed(0)
    dtype = torch.bfloat16 if bench.is_cuda else torch.float32
    with torch.device(bench.device):
        return transformers.LlamaForCausalLM(config).to(dtype).eval()


def _prompts(bench: Bench, batch: int, prompt: int) -> list[list[int]]:
    vocab_size = raw_config(bench)["vocab_size"]
    return [torch.randint(3, vocab_size, (prompt,)).tolist() for _ in range(batch)]


def _generate_batch(bench: Bench, model: Any, batch: int, prompt: int, new: int) -> float:
    """Seconds of the second run; the first compiles."""
    transformers: Any = importlib.import_module("transformers")
    utils: Any = importlib.import_module("transformers.generation.configuration_utils")
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    # The name of the implementation lost its prefix on the way to 5.20.
    model.set_attn_implementation("paged|sdpa" if version < (5, 20) else "sdpa")
    limits = {"num_blocks": 64, "max_batch_tokens": 256, "block_size": 16} if bench.small else {}
    how = utils.ContinuousBatchingConfig(**limits)
    generation = transformers.GenerationConfig(
        max_new_tokens=new, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    seconds = 0.0
    for _ in range(2):
        start = time.perf_counter()
        model.generate_batch(
            inputs=_prompts(bench, batch, prompt), generation_config=generation,
            continuous_batching_config=how, progress_bar=False,
        )  # fmt: skip
        bench.synchronize()
        seconds = time.perf_counter() - start
    model.set_attn_implementation("sdpa")
    return seconds


def _static(bench: Bench, model: Any, prompt: int, new: int) -> float:
    ids = torch.tensor(_prompts(bench, 1, prompt), device=bench.device)
    how = {"cache_implementation": "static"} if bench.is_cuda else {}
    seconds = 0.0
    for _ in range(bench.pick(3, 1)):
        seconds = bench.once(
            lambda: model.generate(
                ids, max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0, **how
            )
        )
    return seconds
