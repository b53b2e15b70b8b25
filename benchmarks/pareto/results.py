"""What was measured, kept after each cell, so that a run that is cut off can go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import msgspec

from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from benchmarks.pareto.choice import Case

#: Settings that may differ between two parts of one run.
_FREE = frozenset({"revision"})


class Slo(msgspec.Struct, frozen=True, kw_only=True):
    """An answer is good within both bounds: of its first token, and of its mean gap."""

    ttft_ms: float
    itl_ms: float


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """One request on the client's clock."""

    #: When it was to be sent, seconds after the first.
    at_s: float
    num_prompt: int
    num_output: int
    #: 0 if no token came.
    ttft_ms: float
    #: Mean time between tokens; 0 for one token.
    itl_ms: float
    max_gap_ms: float
    error: str = ""


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of prompts by where they were computed."""

    here: int = 0
    handed_over: int = 0
    split: int = 0


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One system under one load, once. Milliseconds of requests that were answered."""

    workload: str
    #: Share of the capacity that was to be offered.
    load: float
    system: str
    #: Of requests and their times; systems of one repetition have the same.
    repetition: int
    num_requests: int
    num_failed: int
    #: Share of the capacity that was offered. Chance changes it, and conversations that are cut.
    offered: float
    mean_ttft_ms: float
    p99_ttft_ms: float
    mean_itl_ms: float
    p50_itl_ms: float
    p99_itl_ms: float
    #: Share of all requests that were answered within the SLO.
    goodput: float
    tokens_per_s: float
    took_s: float
    #: None where a system does not say.
    places: Places | None = None
    #: Cores that each process kept busy; `others`: all that have nothing to do with it.
    cores: dict[str, float] = {}
    #: Most that a request left later than it was to.
    max_lag_ms: float = 0.0
    #: Of real workers only.
    answers: list[Answer] = []

    @property
    def others(self) -> float:
        """Cores that others kept busy meanwhile; 0 for simulated workers."""
        return self.cores.get("others", 0.0)

    @property
    def key(self) -> tuple[str, float, str, int]:
        """What it is a measurement of."""
        return self.workload, self.load, self.system, self.repetition


class Results(msgspec.Struct, kw_only=True):
    """All of a run."""

    #: real or simulated.
    kind: str
    settings: dict[str, Any]
    machine: dict[str, Any] = {}
    slo: Slo
    #: Milliseconds of a workload's work (see `choice.work_ms`) that are done in a second.
    capacity_ms: dict[str, float] = {}
    rows: list[Row] = []
    #: Measured again since others were busy; no number comes from them.
    disturbed: list[Row] = []
    #: Systems that were asked for and cannot run here, with the reason.
    missing: dict[str, str] = {}

    def left(self, turns: Iterable[tuple[Case, str]]) -> list[tuple[Case, str]]:
        """Return those of the cells that were not measured yet."""
        done = {row.key for row in self.rows}
        return [
            (case, system)
            for case, system in turns
            if (case.workload, case.load, system, case.repetition) not in done
        ]

    def save(self, path: Path) -> None:
        """Replace the file, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_bytes(msgspec.json.encode(self))
        unfinished.replace(path)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file.

        Raises:
            ConfigError: it is not there, or is none of these.
        """
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigError(f"cannot read results from {path}: {error}") from error

    def resumed(self, path: Path) -> Self:
        """Return what the file has, if there is one; otherwise these.

        Raises:
            ConfigError: the file is of other settings, or is none of these.
        """
        if not path.exists():
            return self
        found = type(self).load(path)
        mine = {"kind": self.kind, "slo": self.slo, **self.settings}
        its = {"kind": found.kind, "slo": found.slo, **found.settings}
        for name in sorted((mine.keys() | its.keys()) - _FREE):
            if mine.get(name) != its.get(name):
                raise ConfigError(
                    f"{path} was measured with {name} {its.get(name)}, not {mine.get(name)}: "
                    "give another --out, or remove it"
                )
        return found
