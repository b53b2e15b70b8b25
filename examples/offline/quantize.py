"""Quantise the model as AMD Quark lays it out, and serve the result with an 8-bit KV cache."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from baton import LLM, SamplingParams

MODEL = "models/pydoc/checkpoint"
PROMPTS = ["What does os.path.join do?", "What is a tuple?"]


def quantize(folder: Path) -> Path:
    """Return a checkpoint of the model in FP8."""
    out = folder / "pydoc-fp8"
    flags = ["--scheme", "fp8", "--format", "quark"]
    subprocess.run(["./baton", "quantize", MODEL, out, *flags], check=True)
    return out


def main() -> None:
    """Print the answers of the quantised model."""
    with tempfile.TemporaryDirectory() as folder:
        model = quantize(Path(folder))
        llm = LLM(model=str(model), kv_cache_dtype="fp8", quantization="quark")
        for output in llm.generate(PROMPTS, SamplingParams(temperature=0.8, top_p=0.95)):
            print(f"Prompt: {output.prompt!r}, Output: {output.outputs[0].text!r}")
        llm.close()


if __name__ == "__main__":
    main()
