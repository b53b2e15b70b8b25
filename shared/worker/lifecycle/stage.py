"""The stages of a worker, and the ends of its lives."""

from __future__ import annotations

from enum import Enum, StrEnum, auto


class Stage(StrEnum):
    """What a worker holds between two changes."""

    #: Weights and KV: it takes requests.
    SERVING = "serving"
    #: Weights alone.
    LOADED = "loaded"
    #: Neither.
    ASLEEP = "asleep"


class Ending(Enum):
    """Why a life of a worker has ended."""

    #: A signal: the process ends.
    STOPPED = auto()
    #: The engine broke, or the directory refuses the worker: the process ends.
    BROKEN = auto()
    #: A change of stage or weights: another life follows.
    TURNED = auto()


class PauseMode(StrEnum):
    """What becomes of running requests in a pause; vLLM's names."""

    ABORT = "abort"
    WAIT = "wait"
    KEEP = "keep"


class SleepLevel(Enum):
    """What a sleeping worker wakes up with."""

    #: The weights that it slept with; another checkpoint in their folder is refused.
    SAME = 1
    #: Whatever their folder holds then.
    ANY = 2
