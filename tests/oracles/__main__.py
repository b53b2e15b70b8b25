"""Records checkpoints with a library, in an environment that has it.

python -m tests.oracles LIBRARY [CASE ...] [--target FOLDER]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import shutil
import tempfile
from pathlib import Path

import torch

from tests.oracles.base import FOLDER

LIBRARIES = ("quark", "gptqmodel", "autoawq", "autoround", "modelopt", "torchao", "hqq")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Record checkpoints that a library writes.")
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("cases", nargs="*", help="all by default")
    parser.add_argument("--target", type=Path, default=FOLDER)
    options = parser.parse_args()
    torch.set_num_threads(1)
    target = options.target.resolve()
    # GPTQModel writes its logs beside whatever it is started in.
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        recorder = importlib.import_module(f"tests.oracles.{options.library}")
        for case in options.cases or recorder.CASES:
            folder = target / f"{options.library}-{case}"
            if folder.exists():
                shutil.rmtree(folder)
            folder.mkdir(parents=True)
            recorder.record(folder, case)


if __name__ == "__main__":
    main()
