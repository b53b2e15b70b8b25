"""`python -m tests.fuzz.checkpoints.worker FOLDER`: loads checkpoints, and says how it went.

Each line of its input is a path, each of its output the result. It measures itself: the most
memory that it had resident during a load, and its CPU time.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from shared.errors import ConfigError, ModelLoadError
from shared.gguf import folder as gguf_folder
from shared.model.checkpoint.loading.heap import give_back_free
from shared.model.loader import load_model
from tests.fakes.model.paged_driver import PagedDriver

#: CPU that a load may take, and what it may reserve without touching it.
CASE_CPU_S = 5.0
MAX_RESERVED_BYTES = 3 * 2**30


class HangError(BaseException):
    """A load took too long."""


def main(cache: Path) -> None:
    """Load what the input names."""
    torch.set_num_threads(1)
    gguf_folder.cache_dir = lambda: cache
    signal.signal(signal.SIGPROF, _stop)
    # What libraries print is no answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        print(json.dumps(_measured(json.loads(line))), file=answers, flush=True)


def _measured(request: dict[str, Any]) -> dict[str, Any]:
    gc.collect()
    give_back_free()
    # The kernel forgets the most that was resident.
    Path("/proc/self/clear_refs").write_text("5")
    before = _status()
    limit = before["VmSize"] + MAX_RESERVED_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    signal.setitimer(signal.ITIMER_PROF, CASE_CPU_S)
    try:
        outcome = {"outcome": "loaded", "table_bytes": _load(Path(request["model"]), request)}
    except (ModelLoadError, ConfigError) as error:
        outcome = {"outcome": "refused", "message": str(error)}
    except (Exception, HangError) as error:  # noqa: BLE001 - that is what is looked for
        trace = "".join(traceback.format_exception(error)[-8:])
        outcome = {"outcome": "failed", "message": repr(error), "trace": trace}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    return {**outcome, "growth_bytes": _status()["VmHWM"] - before["VmRSS"]}


@torch.inference_mode()
def _load(model: Path, request: dict[str, Any]) -> int:
    """As a worker does, and compute a step. Returns the bytes of the rotary angles."""
    loaded = load_model(
        gguf_folder.model_folder(model),
        attention_backend=request["backend"],
        model_impl="torch" if request["backend"] == "torch" else "auto",
        dtype=request["dtype"],
        num_threads=1,
    )
    if loaded.kv_scales is not None:
        loaded.kv_scales.check(loaded.spec)
    spec = loaded.spec
    driver = PagedDriver(loaded.model, block_size=8, chunk=8)
    (answer,), (logits,) = driver.generate([[0]], 1)
    assert logits.shape == (1, spec.vocab_size)
    assert 0 <= answer[0] < spec.vocab_size
    return spec.num_angles * loaded.dtype.itemsize


def _status() -> dict[str, int]:
    """Memory of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    rows = (line.partition(":") for line in lines if line.startswith("Vm"))
    return {name: int(value.split()[0]) * 1024 for name, _, value in rows}


def _stop(*_: object) -> None:
    raise HangError


if __name__ == "__main__":
    main(Path(sys.argv[1]))
