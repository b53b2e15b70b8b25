"""Prompts through the stages of a pipeline, beside one process with as many threads.

Both compute in float32, in turns. Prompts differ, and are queued at once, so that every stage has
work but at the beginning and the end.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from benchmarks.peers.models import FIRST_WORD, MODELS, model_folder
from shared.engine.llm import LLM
from shared.engine.sequence.request import EngineRequest
from shared.engine.settings.ranks import RankSettings
from shared.request.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

_SAMPLING = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)


def prefill_rate(llm: LLM, num_prompts: int, num_tokens: int, vocab_size: int) -> float:
    """Return the tokens of prompts that are computed in a second."""
    draw = np.random.default_rng(7)

    for index in range(num_prompts):
        prompt = draw.integers(FIRST_WORD, vocab_size, num_tokens).tolist()
        request = EngineRequest(
            request_id=str(index), prompt_token_ids=tuple(prompt), sampling=_SAMPLING
        )
        llm.engine.add(request)
    start_s = time.monotonic()
    while llm.engine.has_work():
        llm.engine.step()
    return num_prompts * num_tokens / (time.monotonic() - start_s)


def main(args: Sequence[str] | None = None) -> None:
    """Print one line of JSON per run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=tuple(MODELS), default="medium")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--backend", choices=("native", "torch"), default="native")
    parser.add_argument("--rounds", type=int, default=1, help="of both; the order changes")
    given = parser.parse_args(args)
    folder, vocab_size = model_folder(given.model), MODELS[given.model].vocab_size
    llms = {
        num_stages: LLM(
            folder,
            dtype="float32",
            attention_backend=given.backend,
            num_threads=given.stages,
            ranks=RankSettings(pipeline_parallel_size=num_stages),
            max_num_batched_tokens=given.tokens,
            max_num_seqs=given.prompts,
            max_model_len=given.tokens + 1,
            num_blocks=(given.prompts + 1) * (given.tokens // 16 + 1),
            enable_prefix_caching=False,
        )
        for num_stages in (given.stages, 1)
    }
    order = [given.stages, 1]
    for number in range(given.rounds + 1):  # the first one is short, and warms
        for num_stages in order:
            if given.backend == "torch":  # the loader leaves PyTorch one
                torch.set_num_threads(1 if num_stages > 1 else given.stages)
            num_prompts = given.prompts if number else 2
            rate = prefill_rate(llms[num_stages], num_prompts, given.tokens, vocab_size)
            found = {"backend": given.backend, "model": given.model, "stages": num_stages}
            if number:
                print(json.dumps({**found, "tokens_per_s": round(rate, 1)}), flush=True)
        order.reverse()
    for llm in llms.values():
        llm.close()


if __name__ == "__main__":
    main()
