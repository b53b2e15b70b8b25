"""Tokens a second of an engine in this process that has all prompts at once: `baton bench
throughput`.

Flags and the result file are those of `vllm bench throughput`; further flags are arguments of the
engine.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from benchmarks.load.workload.datasets import load_samples
from benchmarks.load.workload.vocabulary import load_vocabulary
from benchmarks.offline.command import command, model_of
from benchmarks.offline.report import check_output, write_output
from benchmarks.offline.settings import Backend, ThroughputSettings
from shared.offline.engine_args import EngineArgs
from shared.offline.llm import LLM
from shared.offline.records.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.load.workload.sample import Sample
    from benchmarks.offline.settings import ThroughputLoad
    from shared.offline.records.outputs import RequestOutput

app = typer.Typer(add_completion=False)


@command(app, ThroughputSettings)
def throughput(settings: ThroughputSettings, words: Sequence[str]) -> None:
    """Measure how many tokens a second an engine computes that has all prompts at once."""
    check_output(settings.output.output_json)
    model, load = model_of(settings.engine), settings.load
    llm = LLM.from_engine_args(EngineArgs.from_words(model, words))
    warmups, samples = _draw(settings, llm)
    if warmups:
        _answer(llm, warmups, load, use_tqdm=False)
    began_s = time.perf_counter()
    outputs = _answer(llm, samples, load, use_tqdm=True)
    elapsed_s = time.perf_counter() - began_s
    num_prompt = sum(len(output.prompt_token_ids or ()) for output in outputs)
    num_output = sum(len(answer.token_ids) for output in outputs for answer in output.outputs)
    print(
        f"Throughput: {len(samples) / elapsed_s:.2f} requests/s, "
        f"{(num_prompt + num_output) / elapsed_s:.2f} total tokens/s, "
        f"{num_output / elapsed_s:.2f} output tokens/s"
    )
    print(f"Total num prompt tokens:  {num_prompt}")
    print(f"Total num output tokens:  {num_output}")
    write_output(
        settings.output.output_json,
        {
            "model_id": model,
            "elapsed_time": elapsed_s,
            "num_requests": len(samples),
            "total_num_tokens": num_prompt + num_output,
            "requests_per_second": len(samples) / elapsed_s,
            "tokens_per_second": (num_prompt + num_output) / elapsed_s,
        },
    )


def _draw(settings: ThroughputSettings, llm: LLM) -> tuple[list[Sample], list[Sample]]:
    """Return the samples of the warm-up and of the measurement; no prompt is in both."""
    load, data = settings.load, settings.data
    loaded = llm.llm_engine.model
    vocabulary = load_vocabulary(
        data.tokenizer,
        vocab_size=data.vocab_size or loaded.core.engine.vocab_size,
        model_root=Path(loaded.folder),
    )
    samples = load_samples(
        data,
        load.num_warmups + load.num_prompts,
        vocabulary=vocabulary,
        as_text=load.backend is Backend.VLLM_CHAT,
        rng=np.random.default_rng(load.seed),
    )
    return samples[: load.num_warmups], samples[load.num_warmups :]


def _answer(
    llm: LLM, samples: Sequence[Sample], load: ThroughputLoad, *, use_tqdm: bool
) -> list[RequestOutput]:
    params = [
        SamplingParams(
            n=load.n,
            temperature=1.0,
            ignore_eos=True,
            max_tokens=sample.output_len,
            detokenize=not load.disable_detokenize,
        )
        for sample in samples
    ]
    if load.backend is Backend.VLLM_CHAT:
        talks = [[{"role": "user", "content": sample.prompt}] for sample in samples]
        return llm.chat(talks, params, use_tqdm=use_tqdm)
    return llm.generate([_prompt(sample) for sample in samples], params, use_tqdm=use_tqdm)


def _prompt(sample: Sample) -> Any:
    if isinstance(sample.prompt, str):
        return sample.prompt
    return {"prompt_token_ids": sample.prompt}


if __name__ == "__main__":
    app()
