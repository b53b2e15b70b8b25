"""Loads a model, answers with one token, and prints the seconds since this process began."""

from __future__ import annotations

import json
import sys
import time

import psutil

from shared.errors import BatonError
from shared.offline.engine_args import EngineArgs
from shared.offline.llm import LLM
from shared.offline.records.sampling_params import SamplingParams


def main(model: str, *words: str) -> None:
    """Start once."""
    llm = LLM.from_engine_args(EngineArgs.from_words(model, words))
    params = SamplingParams(max_tokens=1, temperature=0, detokenize=False)
    llm.generate([{"prompt_token_ids": [0]}], params, use_tqdm=False)
    print(json.dumps({"seconds": time.time() - psutil.Process().create_time()}))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BatonError as error:
        sys.exit(f"error: {error}")
