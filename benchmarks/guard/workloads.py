"""Fixed pieces of work on the paths that run for every step, block, chunk or request.

Each factory prepares everything and returns what is counted, which can be called again and again.
Imports are inside: a workload that an older tree has no parts for must not take the others along.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    Work = Callable[[], object]

NUM_SEQS, PROMPT_LEN, OUTPUT_LEN, BLOCK_SIZE = 8, 96, 16, 16
NUM_CHUNKS = 100
#: Answers after which the engine's model of steps learns from some steps, not from each.
NUM_SETTLING = 2
SHIPPED_MODEL = Path("models/pydoc/checkpoint")


def block_hash() -> Work:
    """The hashes of a prompt of 1024 tokens."""
    from shared.kv.block_hash import hash_blocks, root_hash

    root, tokens = root_hash(b"guard"), _tokens(1024, seed=0)
    return lambda: hash_blocks(root, tokens, BLOCK_SIZE)


def engine() -> Work:
    """Eight requests, half of them with a common prefix, from admission to the last token."""
    from shared.engine.llm import LLM
    from shared.model.random_checkpoint import (
        CheckpointSpec,
        write_random_checkpoint,
    )

    params = _module("shared.request.sampling_params", "shared.engine.sampling_params")
    with tempfile.TemporaryDirectory() as folder:
        write_random_checkpoint(Path(folder), CheckpointSpec())
        # Text is another workload's subject.
        (Path(folder) / "tokenizer.json").unlink()
        llm = LLM(folder, num_blocks=256)
    sampling = params.SamplingParams(max_tokens=OUTPUT_LEN, temperature=0.0, ignore_eos=True)
    shared = _tokens(PROMPT_LEN // 2, seed=1)

    def work() -> None:
        prompts = [_tokens(PROMPT_LEN, seed=2 + number) for number in range(NUM_SEQS)]
        for prompt in prompts[::2]:
            prompt[: len(shared)] = shared
        llm.generate(prompts, sampling)
        llm.engine.reset_prefix_cache()

    for _ in range(NUM_SETTLING):
        work()
    return work


def detokenize() -> Work:
    """Text of an answer, token by token."""
    from shared.text.answer_text import AnswerText
    from shared.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(SHIPPED_MODEL)
    token_ids = tokenizer.encode("def join(path, *paths): joins one or more path parts. " * 8)

    def work() -> None:
        text = AnswerText(tokenizer, stop=("never there",))
        for token_id in token_ids:
            text.feed([token_id])

    return work


def openai_stream() -> Work:
    """A streamed completion through the router's HTTP application, without a socket."""
    from prometheus_client import CollectorRegistry

    from services.router.models import ServedModels
    from services.router.openai.backend import Backend
    from shared.text.chat_template import ChatTemplate
    from shared.text.tokenizer import Tokenizer

    create_app = _module("services.router.doors.app", "services.router.openai.app").create_app
    generation = _module("services.router.request.generation", "services.router.generation")
    finish = _module("shared.request.answer", "shared.engine.events").FinishReason

    class Script:
        async def generate(self, request: object, outlet: object = None) -> AsyncIterator[Any]:
            del request, outlet
            for number in range(NUM_CHUNKS):
                last = finish.LENGTH if number == NUM_CHUNKS - 1 else None
                yield generation.AnswerPiece(
                    index=0, text="word ", token_ids=(300,), finish_reason=last
                )

    tokenizer = Tokenizer.load(SHIPPED_MODEL)
    models = ServedModels(
        names=("m",), learn_max_model_len=lambda: 4096, vocab_size=tokenizer.vocab_size, created_s=0
    )
    backend = Backend(
        generator=Script(),
        tokenizer=tokenizer,
        chat_template=ChatTemplate.load(SHIPPED_MODEL, tokenizer.special_tokens),
        models=models,
    )
    app = create_app(
        _catalogue(backend),
        not_ready_because=lambda: (),
        registry=CollectorRegistry(),
        version="guard",
    )
    body = {"model": "m", "prompt": [300] * 32, "max_tokens": NUM_CHUNKS, "stream": True}
    return lambda: asyncio.run(_post(app, "/v1/completions", json.dumps(body).encode()))


#: By name. What is counted beside bytecode instructions.
WORKLOADS: dict[str, tuple[Callable[[], Work], bool]] = {
    "block_hash": (block_hash, False),
    "engine": (engine, True),
    "detokenize": (detokenize, False),
    "openai_stream": (openai_stream, False),
}


def _module(*places: str) -> Any:
    """Return the first of these modules that the tree has: modules move."""
    found = next(place for place in places if _is_there(place))
    return importlib.import_module(found)


def _catalogue(backend: Any) -> Any:
    """Return what an application is made of: a backend, where the tree has no catalogue yet."""
    place = "services.router.openai.catalogue"
    return importlib.import_module(place).one_model(backend) if _is_there(place) else backend


def _is_there(place: str) -> bool:
    try:
        return importlib.util.find_spec(place) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False


async def _post(app: Any, path: str, body: bytes) -> None:
    """One request as a server would make it.

    Raises:
        RuntimeError: it was refused.
    """
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
        "path": path, "raw_path": path.encode(), "query_string": b"", "scheme": "http",
        "headers": [(b"content-type", b"application/json"), (b"x-request-id", b"guard")],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "state": {},
    }  # fmt: skip
    received = False

    async def receive() -> dict[str, Any]:
        nonlocal received
        if received:
            await asyncio.Event().wait()
        received = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message.get("status", 200) != 200:
            raise RuntimeError(f"the request was answered with {message['status']}")

    await app(scope, receive, send)


def _tokens(num: int, *, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(300, 500) for _ in range(num)]
