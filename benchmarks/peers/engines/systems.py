"""The systems that can be measured in one process each, and how each is started."""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from benchmarks.peers.engines.process import EngineProcess
from benchmarks.peers.models import MAX_MODEL_LEN
from benchmarks.peers.places import INSTALL, import_folder, peer_python
from cli.places import python_environ

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KV_CACHE_BYTES = 2 << 30
MAX_NUM_SEQS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to run a system on."""

    model: Path
    cores: tuple[int, ...]
    #: For logs and for what peers may import of ours.
    folder: Path
    max_model_len: int = MAX_MODEL_LEN
    dtype: str = "bfloat16"
    #: Folders of LoRA adapters.
    adapters: tuple[Path, ...] = ()


class System(Protocol):
    """A way to answer prompts, in a process of its own."""

    @property
    def name(self) -> str:
        """In tables and results."""

    @property
    def shares_prefixes(self) -> bool:
        """Whether it reuses the KV of equal prefixes."""

    def missing(self) -> str | None:
        """Why it cannot be started here and how to change that; None if it can."""

    def command(self, launch: Launch) -> list[str]:
        """Program and arguments."""

    def environ(self, launch: Launch) -> dict[str, str]:
        """Environment of the program."""


def start(system: System, launch: Launch) -> EngineProcess:
    """Start it; it loads while the caller does something else."""
    log = launch.folder / f"{system.name}-{launch.model.name}.log".replace(" ", "-")
    return EngineProcess(system.command(launch), env=system.environ(launch), log=log)


@dataclass(frozen=True, slots=True, kw_only=True)
class Baton:
    """Ours, in process."""

    quantization: str | None = None
    shares_prefixes: bool = True

    @property
    def name(self) -> str:
        """With the quantization, if any."""
        return f"baton {self.quantization}" if self.quantization else "baton"

    def missing(self) -> str | None:
        """It is always there; whether it knows the quantization, it says when it starts."""
        return None

    def command(self, launch: Launch) -> list[str]:
        """In this environment."""
        extra = ["--quantization", self.quantization] if self.quantization else []
        return [*worker_command(Path(sys.executable), "baton", launch), *extra]

    def environ(self, launch: Launch) -> dict[str, str]:
        """With the whole repository to import from."""
        del launch
        return plain_environ() | {"PYTHONPATH": python_environ()["PYTHONPATH"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Vllm:
    """vLLM's CPU build, engine core in a process of its own as it comes."""

    name: str = "vllm"
    shares_prefixes: bool = True

    def missing(self) -> str | None:
        """Needs an environment of its own."""
        return None if peer_python("vllm") else how_to_install("vllm")

    def command(self, launch: Launch) -> list[str]:
        """In vLLM's environment."""
        return worker_command(installed("vllm"), "vllm_engine", launch)

    def environ(self, launch: Launch) -> dict[str, str]:
        """With the settings that its documentation recommends for CPUs."""
        return vllm_environ(installed("vllm"), launch.cores) | {
            "PYTHONPATH": str(import_folder(launch.folder / "vllm"))
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCpp:
    """llama.cpp through its C API, on the same weights as GGUF."""

    name: str = "llama.cpp"
    shares_prefixes: bool = True

    def missing(self) -> str | None:
        """Needs an environment of its own."""
        return None if peer_python("llamacpp") else how_to_install("llamacpp")

    def command(self, launch: Launch) -> list[str]:
        """In llama.cpp's environment."""
        return worker_command(installed("llamacpp"), "llamacpp_engine", launch)

    def environ(self, launch: Launch) -> dict[str, str]:
        """Nothing of its own."""
        return plain_environ() | {"PYTHONPATH": str(import_folder(launch.folder / "llamacpp"))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformers:
    """`generate()`, which most people start from. It keeps no KV between calls."""

    name: str = "transformers"
    shares_prefixes: bool = False

    def missing(self) -> str | None:
        """Comes with the development environment."""
        if importlib.util.find_spec("transformers") is None:
            return "not installed: make setup"
        return None

    def command(self, launch: Launch) -> list[str]:
        """In this environment."""
        return worker_command(Path(sys.executable), "transformers_engine", launch)

    def environ(self, launch: Launch) -> dict[str, str]:
        """Nothing of its own."""
        folder = import_folder(launch.folder / "transformers")
        return plain_environ() | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(folder)}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatonVectors(Baton):
    """Ours, in process, for vectors."""

    @property
    def name(self) -> str:
        """Of one section with others, so none of `Baton`."""
        return "baton vectors"

    def command(self, launch: Launch) -> list[str]:
        """In this environment."""
        return worker_command(Path(sys.executable), "baton_vectors", launch)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmVectors(Vllm):
    """vLLM's CPU build, for vectors."""

    name: str = "vllm vectors"

    def command(self, launch: Launch) -> list[str]:
        """In vLLM's environment."""
        return worker_command(installed("vllm"), "vllm_vectors", launch)


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceTransformers:
    """What embedding models are published with."""

    name: str = "sentence-transformers"
    shares_prefixes: bool = False

    def missing(self) -> str | None:
        """Needs an environment of its own."""
        found = peer_python("sentence_transformers")
        return None if found else how_to_install("sentence_transformers")

    def command(self, launch: Launch) -> list[str]:
        """In its environment."""
        python = installed("sentence_transformers")
        return worker_command(python, "sentence_transformers_vectors", launch)

    def environ(self, launch: Launch) -> dict[str, str]:
        """Nothing of its own."""
        folder = import_folder(launch.folder / "sentence-transformers")
        return plain_environ() | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(folder)}


def worker_command(python: Path, module: str, launch: Launch) -> list[str]:
    """How a worker is run in any of the environments."""
    adapters = ["--adapters", *map(str, launch.adapters)] if launch.adapters else []
    return [
        str(python), "-P", "-m", f"benchmarks.peers.workers.{module}",
        "--model", str(launch.model),
        "--threads", str(len(launch.cores)),
        "--cores", ",".join(map(str, launch.cores)),
        "--max-model-len", str(launch.max_model_len),
        "--kv-cache-bytes", str(KV_CACHE_BYTES),
        "--max-num-seqs", str(MAX_NUM_SEQS),
        "--dtype", launch.dtype,
        *adapters,
    ]  # fmt: skip


def vllm_environ(python: Path, cores: Sequence[int]) -> dict[str, str]:
    """Environment of any vLLM process that computes on `cores`."""
    preload = [library for library in (_tcmalloc(), _intel_openmp(python)) if library]
    return plain_environ() | {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(KV_CACHE_BYTES >> 30),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "LD_PRELOAD": ":".join(preload),
    }


def plain_environ() -> dict[str, str]:
    """Ours without what would change how another interpreter imports or computes."""
    ours = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_PRELOAD")
    kept: Mapping[str, str] = os.environ
    return {
        name: value
        for name, value in kept.items()
        if name not in ours and not name.startswith(("OMP_", "KMP_", "BATON_"))
    }


def installed(name: str) -> Path:
    python = peer_python(name)
    if python is None:
        raise FileNotFoundError(how_to_install(name))
    return python


def how_to_install(name: str) -> str:
    return f"not installed: {INSTALL} {name}"


def _tcmalloc() -> str | None:
    """vLLM's documentation recommends it."""
    found = ctypes.util.find_library("tcmalloc_minimal")
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"):
        if found and (Path(folder) / found).exists():
            return str(Path(folder) / found)
    return None


def _intel_openmp(python: Path) -> str | None:
    library = python.parent.parent / "lib" / "libiomp5.so"
    return str(library) if library.exists() else None
