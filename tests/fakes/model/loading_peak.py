"""`python -m tests.fakes.model.loading_peak RESULT HOW FOLDER SETTINGS`: what loading takes.

RESULT gets the bytes of the weights, and those by which the peak of the resident memory exceeds
what was there before. HOW: `ours`; or `dict`, which loads as one would without care, and shows that
the measurement can fail.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path


def main(result: str, how: str, folder: str, settings: str) -> None:
    """Load `name` (of the settings, otherwise `large`) of the folder, after a tiny model."""
    from safetensors.torch import load_file

    from shared.model.loader import load_model

    chosen = json.loads(settings)
    path = Path(folder, chosen.pop("name", "large"))
    load_model(Path(folder, "tiny"), **chosen)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts over
    before = _resident("VmRSS")
    loaded = load_model(path, **chosen)
    kept = []
    if how == "dict":
        kept = [
            tensor.clone()
            for file in path.glob("*.safetensors")
            for tensor in load_file(file).values()
        ]
    peak = _resident("VmHWM") - before
    Path(result).write_text(json.dumps([loaded.num_weight_bytes, peak]))
    del kept


def _resident(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


if __name__ == "__main__":
    main(*sys.argv[1:])
