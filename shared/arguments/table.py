"""Every engine argument of vLLM 0.32, and of earlier versions, by name."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from shared.arguments.groups.compiling import COMPILING
from shared.arguments.groups.configs import CONFIGS
from shared.arguments.groups.loading import LOADING
from shared.arguments.groups.memory import MEMORY
from shared.arguments.groups.model import MODEL
from shared.arguments.groups.multimodal import LORA, MULTIMODAL
from shared.arguments.groups.observing import OBSERVING
from shared.arguments.groups.parallel import PARALLEL
from shared.arguments.groups.scheduling import SCHEDULING
from shared.arguments.groups.serving import SERVING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.arguments.base import Argument

GROUPS: Mapping[str, tuple[Argument, ...]] = MappingProxyType(
    {
        "model": MODEL,
        "loading": LOADING,
        "parallel": PARALLEL,
        "memory": MEMORY,
        "scheduling": SCHEDULING,
        "images and sound": MULTIMODAL,
        "adapters": LORA,
        "logs and metrics": OBSERVING,
        "kernels": COMPILING,
        "server": SERVING,
        "other": CONFIGS,
    }
)
ARGUMENTS: Mapping[str, Argument] = MappingProxyType(
    {argument.name: argument for group in GROUPS.values() for argument in group}
)
SHORT: Mapping[str, str] = MappingProxyType(
    {argument.short: argument.name for argument in ARGUMENTS.values() if argument.short}
)
