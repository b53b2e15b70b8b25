"""Step the engine: a request comes while others are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton import EngineArgs, LLMEngine, RequestOutput, SamplingParams
from baton.utils.argparse_utils import FlexibleArgumentParser

if TYPE_CHECKING:
    from argparse import Namespace

REQUESTS = [
    ("def add(a, b):", SamplingParams(temperature=0.0, logprobs=1, prompt_logprobs=1)),
    ("What is a tuple?", SamplingParams(temperature=0.8, top_k=5, presence_penalty=0.2)),
    ("How do I read a file?", SamplingParams(n=2, temperature=0.8, top_p=0.95)),
]


def process(engine: LLMEngine) -> list[RequestOutput]:
    """Add a request per step, and step until all have ended."""
    waiting = list(enumerate(REQUESTS))
    finished: list[RequestOutput] = []
    while waiting or engine.has_unfinished_requests():
        if waiting:
            request_id, (prompt, sampling_params) = waiting.pop(0)
            engine.add_request(str(request_id), prompt, sampling_params)
        finished += [output for output in engine.step() if output.finished]
    return finished


def main(args: Namespace) -> None:
    """Print the answers as they end."""
    engine = LLMEngine.from_engine_args(EngineArgs.from_cli_args(args))
    for output in process(engine):
        texts = [completion.text for completion in output.outputs]
        print(f"{output.request_id}: {output.prompt!r} -> {texts!r}")
    engine.shutdown()


if __name__ == "__main__":
    parser = FlexibleArgumentParser(description=__doc__)
    EngineArgs.add_cli_args(parser)
    parser.set_defaults(model="models/pydoc/checkpoint")
    main(parser.parse_args())
