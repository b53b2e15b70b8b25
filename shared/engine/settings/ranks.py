"""The ranks that compute a model together, as settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from shared.config import setting
from shared.engine.settings.speculation import WITHOUT_MODEL
from shared.errors import ConfigError
from shared.ranks.base import MAX_RANKS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.engine.settings.engine import EngineConfig


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
    nnodes: int = setting(
        1, help="hosts that the ranks are divided among: each starts this program with its number"
    )
    node_rank: int = setting(
        0,
        help="this host's number, from 0: host 0 is the worker, the others have ranks of it alone",
    )
    master_addr: str = setting(
        "127.0.0.1", help="address of host 0 at which the other hosts reach it"
    )
    master_port: int = setting(29501, help="port of host 0 for the other hosts")
    node_patience_s: float = setting(
        0.0,
        help="seconds for which a host that host 0 refuses asks again, as in an upgrade of one "
        "host after the other; then it ends",
    )
    distributed_executor_backend: Literal["mp", "external"] = setting(
        "mp",
        help="mp: a host starts the processes of its ranks; external: each rank is a program that "
        "is started from outside, with its number as --node-rank, or in torchrun's variables",
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
        self._check_nodes()

    def _check_nodes(self) -> None:
        if self.nnodes < 1 or self.size % self.nnodes:
            fit = ", ".join(str(n) for n in range(1, self.size + 1) if self.size % n == 0)
            raise ConfigError(
                f"nnodes {self.nnodes}: {self.size} ranks (tensor_parallel_size times "
                f"pipeline_parallel_size) are divided evenly among {fit} hosts"
            )
        if not 0 <= self.node_rank < self.nnodes:
            raise ConfigError(f"node_rank must be 0 to {self.nnodes - 1}, not {self.node_rank}")
        if self.node_patience_s < 0:
            raise ConfigError("node_patience_s must be 0 or more")
        if not 1 <= self.master_port < 1 << 16:
            raise ConfigError(f"master_port must be 1 to 65535, not {self.master_port}")
        if self.is_external and self.nnodes not in (1, self.size):
            raise ConfigError(
                f"distributed_executor_backend external: each of {self.size} ranks is a node, so "
                f"nnodes is {self.size}, not {self.nnodes}"
            )

    @property
    def alike(self) -> dict[str, str]:
        """What all hosts must have alike, by name."""
        names = (
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "enable_expert_parallel",
            "nnodes",
            "distributed_executor_backend",
        )
        found = {name: str(getattr(self, name)) for name in names}
        return found | {"distributed_timeout_seconds": f"{self.distributed_timeout_seconds:g}"}

    @property
    def is_external(self) -> bool:
        """Whether the ranks' programs are started from outside."""
        return self.distributed_executor_backend == "external"

    @property
    def local_size(self) -> int:
        """Number of ranks of each host."""
        return self.size // self.nnodes

    def ranks_of(self, node: int) -> range:
        """Return the ranks of a host."""
        return range(node * self.local_size, (node + 1) * self.local_size)

    def node_of(self, rank: int) -> int:
        """Return a rank's host."""
        return rank // self.local_size

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


#: The name of a pod of a Kubernetes StatefulSet, which ends with the pod's number.
POD_VARIABLE = "STATEFULSET_POD_NAME"


def placed_ranks(ranks: RankSettings, environ: Mapping[str, str]) -> RankSettings:
    """Return the settings, with the place that variables of the surroundings give this program.

    A pod of a StatefulSet has its number as a host at the end of its name. An external rank has the
    place of torchrun's variables, if the settings name no number of nodes; where torchrun's own
    store has the port, the next one is taken.

    Raises:
        ConfigError: an external rank has no place, or a variable is no number.
    """
    if ranks.nnodes > 1 and (pod := environ.get(POD_VARIABLE)):
        return replace(ranks, node_rank=_number_of(pod))
    if not ranks.is_external or ranks.size == 1 or ranks.nnodes > 1:
        return ranks
    wanted = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in wanted if not environ.get(name)]
    if missing:
        raise ConfigError(
            f"distributed_executor_backend external: give --nnodes {ranks.size}, --node-rank, "
            f"--master-addr and --master-port, or torchrun's variables; {missing[0]} is not set"
        )
    rank, size, addr, port = (environ[name] for name in wanted)
    try:
        numbers = int(rank), int(size), int(port)
    except ValueError as error:
        raise ConfigError(f"RANK, WORLD_SIZE and MASTER_PORT are numbers: {error}") from error
    if numbers[1] != ranks.size:
        raise ConfigError(f"WORLD_SIZE is {size}, and {ranks.description} is {ranks.size} ranks")
    own_port = numbers[2] + (environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True")
    return replace(
        ranks, nnodes=ranks.size, node_rank=numbers[0], master_addr=addr, master_port=own_port
    )


def _number_of(pod: str) -> int:
    number = pod.rpartition("-")[2]
    if not number.isdecimal():
        raise ConfigError(f"{POD_VARIABLE} ends with the number of the host, not as {pod!r} does")
    return int(number)


def _check_devices(ranks: RankSettings, config: EngineConfig) -> None:
    asked = f"{ranks.description} on {config.device}"
    if config.device not in ("cuda", "cuda:0"):
        raise ConfigError(
            f"{asked}: ranks compute on a CPU, or on CUDA devices from cuda:0 on; "
            "CUDA_VISIBLE_DEVICES chooses others"
        )
    if ranks.pipeline_parallel_size > 1:
        raise ConfigError(f"{asked}: stages compute on CPUs alone; take tensor_parallel_size")
    if ranks.nnodes > 1:
        raise ConfigError(f"{asked}: ranks of several hosts (nnodes) compute on CPUs alone")
    if config.kv_offload_host_gib > 0:
        raise ConfigError(
            f"{asked}: tiers below the blocks (--kv-offload-host-gib) take whole blocks, and each "
            "device has a part of each"
        )


def check_ranks(ranks: RankSettings, config: EngineConfig) -> None:
    """Refuse an engine's settings that a group of ranks does not have.

    Raises:
        ConfigError: names the setting, and what to do.
    """
    if ranks.size == 1:
        return
    size = ranks.description
    if ranks.nnodes > 1 and config.kv_offload_host_gib > 0:
        raise ConfigError(
            f"nnodes {ranks.nnodes}: tiers below the blocks (--kv-offload-host-gib) need all ranks "
            "on one host"
        )
    if config.device != "cpu":
        _check_devices(ranks, config)
    speculation = config.speculation
    if speculation is not None and speculation.method not in WITHOUT_MODEL:
        raise ConfigError(
            f"{size}: speculation by {speculation.method} needs the whole model on one rank; take "
            f"{' or '.join(WITHOUT_MODEL)}"
        )
