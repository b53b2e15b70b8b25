"""Time of one batch in an engine in this process: `baton bench latency`.

Flags and the result file are those of `vllm bench latency`; further flags are arguments of the
engine. Prefix caching is off unless a flag turns it on: the prompts are the same each time.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import typer
from tqdm import tqdm

from benchmarks.offline.command import command, model_of
from benchmarks.offline.report import check_output, describe_times, write_output
from benchmarks.offline.settings import LatencySettings
from shared.errors import ConfigError
from shared.offline.engine_args import EngineArgs
from shared.offline.llm import LLM
from shared.offline.records.sampling_params import BeamSearchParams, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.offline.settings import BatchSettings

app = typer.Typer(add_completion=False)


@command(app, LatencySettings)
def latency(settings: LatencySettings, words: Sequence[str]) -> None:
    """Measure the time in which one batch of prompts is answered."""
    check_output(settings.output.output_json)
    model, batch = model_of(settings.engine), settings.batch
    llm = LLM.from_engine_args(EngineArgs.from_words(model, ["--no-enable-prefix-caching", *words]))
    answer = _answering(llm, batch)
    for _ in tqdm(range(batch.num_iters_warmup), desc="Warmup iterations"):
        answer()
    times_s = []
    for _ in tqdm(range(batch.num_iters), desc="Bench iterations"):
        began_s = time.perf_counter()
        answer()
        times_s.append(time.perf_counter() - began_s)
    described = describe_times("latency", times_s)
    write_output(
        settings.output.output_json,
        {
            "model_id": model,
            "avg_latency": described["mean"],
            "latencies": described["values"],
            "percentiles": described["percentiles"],
        },
    )


def _answering(llm: LLM, batch: BatchSettings) -> Callable[[], Any]:
    """Return a function that answers the batch once.

    Raises:
        ConfigError: the model does not take sequences of this length.
    """
    engine = llm.llm_engine.model.core.engine
    if batch.input_len + batch.output_len > engine.max_model_len:
        raise ConfigError(
            f"--input-len {batch.input_len} and --output-len {batch.output_len} are over the "
            f"{engine.max_model_len} tokens of --max-model-len"
        )
    rng = np.random.default_rng(0)
    ids = rng.integers(engine.vocab_size, size=(batch.batch_size, batch.input_len)).tolist()
    prompts = [{"prompt_token_ids": each} for each in ids]
    if batch.use_beam_search:
        beams = BeamSearchParams(beam_width=batch.n, max_tokens=batch.output_len, ignore_eos=True)
        return lambda: llm.beam_search(prompts, beams)
    params = SamplingParams(
        n=batch.n,
        temperature=1.0,
        ignore_eos=True,
        max_tokens=batch.output_len,
        detokenize=not batch.disable_detokenize,
    )
    return lambda: llm.generate(prompts, params, use_tqdm=False)


if __name__ == "__main__":
    app()
