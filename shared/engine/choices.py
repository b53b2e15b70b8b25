"""What settings of the engine may be chosen from."""

from __future__ import annotations

from enum import StrEnum


class SchedulingPolicy(StrEnum):
    """The order of admission and of preemption."""

    FCFS = "fcfs"
    PRIORITY = "priority"


class BackendName(StrEnum):
    """Values of --structured-outputs-backend, vLLM's."""

    #: The others as far as they are installed: each grammar by the first that can follow it.
    AUTO = "auto"
    XGRAMMAR = "xgrammar"
    GUIDANCE = "guidance"
