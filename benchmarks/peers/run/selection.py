"""What a run measures: which systems and measures on which model, and for how long."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from benchmarks.peers.engines.systems import (
    Baton,
    BatonVectors,
    LlamaCpp,
    SentenceTransformers,
    Transformers,
    Vllm,
    VllmVectors,
)
from benchmarks.peers.formats import GGUF_TYPES, SCHEMES
from benchmarks.peers.measures import (
    ADAPTER_MEASURES,
    LONG_MEASURES,
    MEASURES,
    NARROW_MEASURES,
    VECTOR_MEASURES,
)
from benchmarks.peers.models import EMBEDDERS
from benchmarks.peers.run.contestants import (
    EmbedderContestant,
    EngineContestant,
    ServerContestant,
)
from benchmarks.peers.serving.baton import BatonServing
from benchmarks.peers.serving.measures import interference, rates
from benchmarks.peers.serving.vllm import VllmAggregated, VllmDisaggregated
from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benchmarks.peers.measures import Measure
    from benchmarks.peers.run.contestants import Contestant

ENGINES: dict[str, Callable[[], Contestant]] = {
    "baton": lambda: EngineContestant(Baton()),
    "baton int8": lambda: EngineContestant(Baton(quantization="int8")),
    "baton int4": lambda: EngineContestant(Baton(quantization="int4")),
    "vllm": lambda: EngineContestant(Vllm()),
    "llama.cpp": lambda: EngineContestant(LlamaCpp()),
    "transformers": lambda: EngineContestant(Transformers()),
}
EMBEDDING: dict[str, Callable[[], Contestant]] = {
    "baton vectors": lambda: EmbedderContestant(BatonVectors()),
    "vllm vectors": lambda: EmbedderContestant(VllmVectors()),
    "sentence-transformers": lambda: EmbedderContestant(SentenceTransformers()),
}
#: Chunk sizes among which the aggregated engine shows its best.
CHUNKS = (128, 256, 512)
SERVERS: dict[str, Callable[[], Contestant]] = {
    "baton P/D": lambda: ServerContestant(BatonServing(name="baton P/D", num_prefill=1)),
    "baton aggregated": lambda: ServerContestant(
        BatonServing(name="baton aggregated", num_prefill=0)
    ),
    "vllm P/D": lambda: ServerContestant(VllmDisaggregated()),
    "vllm aggregated": lambda: ServerContestant(VllmAggregated(name="vllm aggregated")),
}


def _aggregated(chunk: int) -> Callable[[], Contestant]:
    name = f"baton aggregated chunk {chunk}"
    return lambda: ServerContestant(BatonServing(name=name, num_prefill=0, chunk=chunk))


SWEEP = {f"baton aggregated chunk {chunk}": _aggregated(chunk) for chunk in CHUNKS}
ALL = ENGINES | EMBEDDING | SERVERS | SWEEP


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One rotation. `share` is its part of the time, relative to the others' shares."""

    section: str
    model: str
    systems: tuple[str, ...]
    measures: tuple[Measure, ...]
    share: float

    @property
    def title(self) -> str:
        """Section and model."""
        return f"{self.section} {self.model}"


def default_parts() -> list[Part]:
    """What fits into a quarter of an hour on two cores."""
    by_name = {measure.name: measure for measure in MEASURES}
    small = ("single-1024", "batch-16", "single-32", "prefix")
    medium = ("single-1024", "batch-16")
    return [
        Part(
            section="engine", model="small", systems=tuple(ENGINES),
            measures=tuple(by_name[name] for name in small), share=5,
        ),
        Part(
            section="engine", model="medium", systems=("baton", "vllm", "llama.cpp"),
            measures=tuple(by_name[name] for name in medium), share=4,
        ),
        Part(
            section="serving", model="small", systems=tuple(SERVERS),
            measures=(interference(12.0),), share=6,
        ),
    ]  # fmt: skip


def full_parts() -> list[Part]:
    """Everything."""
    servers = (*SERVERS, *SWEEP)
    return [
        Part(
            section="engine", model=model, systems=tuple(ENGINES), measures=MEASURES, share=share
        )
        for model, share in (("small", 2), ("medium", 5), ("experts", 5))
    ] + [
        Part(
            section="engine", model="states",
            systems=("baton", "baton int8", "vllm", "transformers"), measures=MEASURES, share=5,
        ),
        Part(
            section="engine", model="hybrid", systems=tuple(ENGINES), measures=LONG_MEASURES,
            share=5,
        ),
        Part(
            section="serving", model="small", systems=servers,
            measures=(interference(30.0), *rates("small", 40.0)), share=8,
        )
    ] + [
        Part(
            section="engine", model=f"{model}-{form}", systems=("baton", "llama.cpp"),
            measures=NARROW_MEASURES, share=2,
        )
        for model in ("small", "medium") for form in GGUF_TYPES
    ] + [
        Part(
            section="engine", model=f"small-{form}", systems=("baton", "vllm"),
            measures=NARROW_MEASURES, share=2,
        )
        for form in SCHEMES
    ] + [
        Part(
            section="engine", model="medium-adapters", systems=("baton", "vllm"),
            measures=ADAPTER_MEASURES, share=3,
        )
    ] + [
        Part(
            section="vectors", model=model, systems=tuple(EMBEDDING), measures=VECTOR_MEASURES,
            share=2,
        )
        for model in EMBEDDERS
    ]  # fmt: skip


def narrow(
    parts: Sequence[Part],
    *,
    sections: Sequence[str],
    models: Sequence[str],
    systems: Sequence[str],
    measures: Sequence[str],
) -> list[Part]:
    """Only what is named; an empty list names everything.

    Raises:
        ConfigError: nothing is left, or a name is unknown.
    """
    _require_known("system", systems, ALL)
    known = {measure.name for part in parts for measure in part.measures}
    _require_known("measure", measures, known)
    left = []
    for part in parts:
        if (sections and part.section not in sections) or (models and part.model not in models):
            continue
        own = tuple(name for name in part.systems if not systems or name in systems)
        wanted = tuple(m for m in part.measures if not measures or m.name in measures)
        if own and wanted:
            left.append(replace(part, systems=own, measures=wanted))
    if not left:
        raise ConfigError("nothing is left to measure")
    return left


def _require_known(kind: str, names: Sequence[str], known: Iterable[str]) -> None:
    choices = sorted(known)
    for name in names:
        if name not in choices:
            raise ConfigError(f"no {kind} is called {name!r}; there are: {', '.join(choices)}")
