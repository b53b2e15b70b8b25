"""Models of the comparison in few bits: one file, or one folder, that both sides read.

`small-q4_0` is the model `small` in llama.cpp's type Q4_0, by llama.cpp's own quantisation;
`small-w8a8` what `baton quantize` makes of it.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from benchmarks.peers.engines.process import PeerError
from benchmarks.peers.engines.systems import installed, plain_environ
from benchmarks.peers.models import ADAPTERS, VECTORS, embedder_folder, model_folder
from benchmarks.peers.places import LOGS, import_folder
from cli.places import python_environ

if TYPE_CHECKING:
    from pathlib import Path

#: Types of GGUF files, as llama.cpp names them.
GGUF_TYPES = ("q8_0", "q4_0", "q4_k_m")
#: Schemes of `baton quantize` that vLLM computes on a CPU, too.
SCHEMES = ("w8a8",)
_TIMEOUT_S = 600.0


def model_path(name: str) -> Path:
    """The checkpoint or the file of a model, written now if it is not in the cache yet.

    Raises:
        KeyError: no such model.
        FileNotFoundError: llama.cpp is needed to write it, and not installed.
        PeerError: it could not be written.
    """
    base, _, form = name.partition("-")
    if form == VECTORS:
        return embedder_folder(base)
    folder = model_folder(base)
    if not form or form == ADAPTERS:
        return folder
    if form in SCHEMES:
        out = folder.with_name(f"{folder.name}.{form}")
        command = [sys.executable, "-m", "cli", "quantize", str(folder), str(out)]
        if not out.is_dir():
            _run([*command, "--scheme", form], python_environ()["PYTHONPATH"], out)
        return out
    if form not in GGUF_TYPES:
        raise KeyError(name)
    path = folder.with_name(f"{folder.name}.{form}.gguf")
    if not path.is_file():
        _quantize(folder, form, path)
    return path


def _quantize(folder: Path, form: str, path: Path) -> None:
    unfinished = path.with_suffix(".unfinished")
    command = [
        str(installed("llamacpp")), "-P", "-m", "benchmarks.peers.workers.gguf_type",
        str(folder), form, str(unfinished),
    ]  # fmt: skip
    _run(command, str(import_folder(LOGS / "llamacpp")), path)
    unfinished.rename(path)


def _run(command: list[str], imports: str, out: Path) -> None:
    environ = plain_environ() | {"PYTHONPATH": imports}
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise PeerError(f"{out} could not be written:\n{done.stderr[-2000:]}")
