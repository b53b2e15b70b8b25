"""Loading needs the memory of the weights as they are kept and of a shard, and no more."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.fakes.processes.warm_process import WarmProcess
from tests.fakes.stored.base import quantise_checkpoint
from tests.fakes.stored.compressed import INT4, Compressed
from tests.unit.model.checkpoints import edit_json, write

NUM_SHARDS = 8


def peak_bytes(how: str, folder: Path, **settings: str) -> tuple[int, int]:
    """What `loading_peak` measures in a process of its own."""
    result, log = folder / "peak.json", folder / "log"
    argv = ("tests.fakes.model.loading_peak", str(result), how, str(folder), json.dumps(settings))
    with log.open("wb") as file:
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = WarmProcess(argv, cwd=Path.cwd(), env=env, log=file)
    assert process.wait(60) == 0, log.read_text(errors="replace")
    weights, peak = json.loads(result.read_text())
    return weights, peak


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    write(folder / "tiny")
    write(
        folder / "large",
        num_layers=8,
        hidden_size=512,
        intermediate_size=1536,
        vocab_size=4096,
        dtype="float32",
        num_shards=NUM_SHARDS,
    )
    quantise_checkpoint(
        write(
            folder / "whole",
            num_layers=8,
            hidden_size=512,
            intermediate_size=1536,
            vocab_size=4096,
            dtype="float32",
        ),
        folder / "stored",
        Compressed("pack-quantized", INT4),
        lambda name: "proj" in name,
    )
    return folder


pytestmark = pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux's /proc"
)


def test_loading_needs_the_weights_and_a_shard_at_most(folder: Path) -> None:
    weights, peak = peak_bytes("ours", folder)
    slack = 8 << 20
    largest = 4096 * 512 * 4  # the embedding, while it is packed for the native kernels
    # One shard mapped, one page cache behind.
    allowed = weights + 2 * weights // NUM_SHARDS + largest + slack
    assert weights > 80 << 20
    assert peak < allowed
    assert peak_bytes("dict", folder)[1] > allowed


@pytest.mark.parametrize(
    "settings",
    [
        {"quantization": "int8", "dtype": "bfloat16"},
        {"quantization": "int4", "dtype": "bfloat16"},
        {"quantization": "int4", "dtype": "float32", "attention_backend": "torch"},
    ],
    ids=["native int8", "native int4", "int4"],
)
def test_narrow_weights_are_never_there_in_full(folder: Path, settings: dict[str, str]) -> None:
    """Of the model's own dtype there are two layers at a time: shards end within one."""
    shard = sum(path.stat().st_size for path in folder.glob("large/*.safetensors")) // NUM_SHARDS
    weights, peak = peak_bytes("ours", folder, **settings)
    element = 2 if settings["dtype"] == "bfloat16" else 4
    full = 8 * (4 * 512 * 512 + 3 * 512 * 1536) * element
    largest = 4096 * 512 * 4
    allowed = weights + 2 * shard + largest + full // 4 + (8 << 20)
    assert peak < allowed < weights + full


def test_angles_are_there_once_natively(folder: Path) -> None:
    """In float32, and not in the model's dtype beside it."""
    positions, head_dim = 1 << 20, 16
    edit_json(write(folder / "long") / "config.json", max_position_embeddings=positions)
    _, peak = peak_bytes("ours", folder, name="long", dtype="bfloat16", attention_backend="native")
    table = positions * head_dim * 4
    assert table < peak < table + (30 << 20) < table + table // 2


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_stored_codes_are_dense_one_after_the_other(folder: Path, backend: str) -> None:
    """Beside the weights there are the file, and the matrices of one linear."""
    weights, peak = peak_bytes("ours", folder, name="stored", attention_backend=backend)
    file = (folder / "stored" / "model.safetensors").stat().st_size
    linear, largest = 2 * 512 * 1536 * 4, 4096 * 512 * 4
    assert peak < weights + file + 2 * linear + largest + (8 << 20)
