"""The ranks that compute a model together, as settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.config import setting
from shared.engine.speculation_config import WITHOUT_MODEL
from shared.errors import ConfigError
from shared.ranks.base import MAX_RANKS

if TYPE_CHECKING:
    from shared.engine.config import EngineConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSettings:
    """How many processes compute a model together. Names as in vLLM."""

    tensor_parallel_size: int = setting(
        1, help="processes that compute the model together: each has a part of every layer"
    )
    pipeline_parallel_size: int = setting(
        1,
        help="stages that the layers are divided in, each of --tensor-parallel-size processes: a "
        "step goes through one after the other",
    )
    enable_expert_parallel: bool = setting(
        default=False,
        help="give each rank some of the experts whole, instead of a part of every expert",
    )
    distributed_timeout_seconds: float = setting(
        30.0, help="seconds that a rank may be late; then its worker is lost"
    )

    def __post_init__(self) -> None:
        for name in ("tensor_parallel_size", "pipeline_parallel_size"):
            if not 1 <= getattr(self, name) <= MAX_RANKS:
                raise ConfigError(f"{name} must be 1 to {MAX_RANKS}, not {getattr(self, name)}")
        if self.size > MAX_RANKS:
            raise ConfigError(
                f"tensor_parallel_size times pipeline_parallel_size must be 1 to {MAX_RANKS}, not "
                f"{self.size}"
            )
        if self.enable_expert_parallel and self.tensor_parallel_size == 1:
            raise ConfigError("enable_expert_parallel needs a tensor_parallel_size over 1")
        if self.distributed_timeout_seconds <= 0:
            raise ConfigError("distributed_timeout_seconds must be over 0")

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def description(self) -> str:
        """The settings that make more than one rank, for refusals."""
        if self.pipeline_parallel_size == 1:
            return f"tensor_parallel_size {self.tensor_parallel_size}"
        return f"pipeline_parallel_size {self.pipeline_parallel_size}"


def check_ranks(ranks: RankSettings, config: EngineConfig) -> None:
    """Refuse an engine's settings that a group of ranks does not have.

    Raises:
        ConfigError: names the setting, and what to do.
    """
    if ranks.size == 1:
        return
    size = ranks.description
    if config.device != "cpu":
        raise ConfigError(f"{size}: the ranks of a group compute on a CPU, not on {config.device}")
    speculation = config.speculation
    if speculation is not None and speculation.method not in WITHOUT_MODEL:
        raise ConfigError(
            f"{size}: speculation by {speculation.method} needs the whole model on one rank; take "
            f"{' or '.join(WITHOUT_MODEL)}"
        )
