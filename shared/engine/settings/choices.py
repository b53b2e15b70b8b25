"""Values of the engine's settings that have a fixed set of choices."""

from __future__ import annotations

from enum import StrEnum


class SchedulingPolicy(StrEnum):
    """The order of admission and of preemption."""

    FCFS = "fcfs"
    PRIORITY = "priority"
    #: Ours: by priority, then short prompts before long ones, which do not wait for ever.
    URGENCY = "urgency"


class BackendName(StrEnum):
    """Values of --structured-outputs-backend, vLLM's."""

    #: The other values as far as they are installed: for each grammar the first that supports it.
    AUTO = "auto"
    XGRAMMAR = "xgrammar"
    GUIDANCE = "guidance"
