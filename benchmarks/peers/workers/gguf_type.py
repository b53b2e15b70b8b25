"""`python -m …gguf_type CHECKPOINT TYPE OUT`: a checkpoint's weights in a type of llama.cpp's."""

from __future__ import annotations

import sys
from pathlib import Path

import llama_cpp

from benchmarks.peers.workers.gguf_file import gguf_file


def quantize(checkpoint: Path, name: str, out: Path) -> None:
    """Write a GGUF file with llama.cpp's own quantisation; `name` is one of LLAMA_FTYPE_MOSTLY_*.

    Raises:
        RuntimeError: llama.cpp failed; it has said why.
    """
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{name.upper()}")
    params.nthread = 2
    source = gguf_file(checkpoint)
    code = llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), params)
    if code != 0:
        raise RuntimeError(f"llama_model_quantize of {source} returned {code}")


if __name__ == "__main__":
    quantize(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
