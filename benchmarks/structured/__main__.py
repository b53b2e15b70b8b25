"""`make conformance` and `make bench-structured`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.structured.conformance import make_cases, run
from benchmarks.structured.cost import measure_backend, tokens_per_s
from benchmarks.structured.systems import ask_engine, ask_router, running_cluster
from shared.engine.llm import LLM
from shared.engine.settings.choices import BackendName
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from shared.text.token_table import TokenTable
from shared.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from benchmarks.structured.conformance import Conformance

app = typer.Typer(add_completion=False)
DEFAULT_MODEL = Path("models/pydoc/checkpoint")
#: Random weights; small, so that thousands of tokens are computed in no time.
RANDOM = CheckpointSpec(num_layers=2, vocab_size=384, max_position_embeddings=1024)
#: Of the cases: what ends within this many tokens is checked.
MAX_TOKENS = 400
NGRAM = '{"method": "ngram", "num_speculative_tokens": 4, "adaptive": false}'


@app.command()
def conformance(
    num_schemas: Annotated[int, typer.Option(help="Schemas, made of seeds from 0 on.")] = 300,
    backend: Annotated[BackendName, typer.Option(help="Whose grammars.")] = BackendName.AUTO,
    disaggregated: Annotated[bool, typer.Option(help="Over P/D as well.")] = True,
    speculation: Annotated[bool, typer.Option(help="Guess tokens by n-grams.")] = False,
) -> None:
    """Ask random weights for JSON of many schemas at temperature 1; fail unless all is valid."""
    console = Console(width=110)
    results: dict[str, Conformance] = {}
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        write_random_checkpoint(model, RANDOM)
        tokenizer = Tokenizer.load(model)
        cases = make_cases(range(num_schemas), tokenizer, max_tokens=MAX_TOKENS)
        settings: dict[str, Any] = {"speculative_config": NGRAM} if speculation else {}
        llm = LLM(model, num_blocks=2048, structured_outputs_backend=backend, **settings)
        results["in-process"] = run(cases, ask_engine(llm), tokenizer)
        llm.close()
        if disaggregated:
            flags = ["--structured-outputs-backend", backend.value]
            flags += ["--speculative-config", NGRAM] if speculation else []
            with running_cluster(model, Path(folder), *flags) as stub:
                results["P/D"] = run(cases, ask_router(stub), tokenizer)
    table = Table(
        "system", "schemas", "finished", "valid", "tokens", title="JSON-schema conformance"
    )
    for name, one in results.items():
        row = (one.num_cases, one.num_finished, one.num_valid, one.num_tokens)
        table.add_row(name, *map(str, row))
        for seed, schema, text, fault in one.faults:
            console.print(f"{name} {seed}: {fault}\n  {json.dumps(schema)}\n  {text!r}")
    console.print(table)
    keywords = next(iter(results.values())).keywords
    console.print("keywords: " + ", ".join(f"{name} {num}" for name, num in keywords.most_common()))
    if any(one.faults or one.num_finished < one.num_cases // 2 for one in results.values()):
        raise typer.Exit(1)


@app.command()
def cost(
    model: Annotated[Path, typer.Option(help="Checkpoint with a tokenizer.")] = DEFAULT_MODEL,
    vocab_size: Annotated[int, typer.Option(help="Pad the vocabulary to so many tokens.")] = 0,
    num_schemas: Annotated[int, typer.Option(help="Schemas to walk through.")] = 40,
    num_steps: Annotated[int, typer.Option(help="Tokens of each, at most.")] = 100,
    passes: Annotated[int, typer.Option(help="Passes of the engine, alternating.")] = 3,
) -> None:
    """Report microseconds per mask, and tokens per second with and without grammars."""
    console = Console(width=110)
    tokenizer = Tokenizer.load(model)
    cases = make_cases(range(num_schemas), tokenizer)
    names = ("load ms", "compile ms", "max ms", "mask µs", "p99", "accept µs", "apply µs")
    table = Table("backend", "vocabulary", *names, title="a grammar, medians")
    tokens = TokenTable.of(tokenizer, max(vocab_size, tokenizer.vocab_size))
    for name in (BackendName.XGRAMMAR, BackendName.GUIDANCE):
        found = measure_backend(name, tokens, cases, num_steps=num_steps)
        numbers = (
            found.load_ms, found.compile_ms, found.compile_max_ms, found.mask_us,
            found.mask_p99_us, found.accept_us, found.apply_us,
        )  # fmt: skip
        table.add_row(name, str(tokens.vocab_size), *(f"{number:.2f}" for number in numbers))
    console.print(table)
    rates = Table("batch", "plain tok/s", "with grammars tok/s", "mask µs/token")
    llm = LLM(model, num_blocks=1024)
    for batch in (1, 8):
        found_rates: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(passes):
            for constrained, into in found_rates.items():
                rate = tokens_per_s(llm, cases[:batch], constrained=constrained, num_tokens=64)
                into.append(rate)
        stats = llm.grammars.stats
        per_mask_us = stats.mask_ns / max(1, stats.num_masks) / 1e3
        best = [f"{sorted(values)[passes // 2]:.0f}" for values in found_rates.values()]
        rates.add_row(str(batch), *best, f"{per_mask_us:.1f}")
    llm.close()
    console.print(rates)


if __name__ == "__main__":
    app()
