"""Files of checkpoints: their pages leave memory, and memory for weights is used again."""

from __future__ import annotations

from mmap import PAGESIZE
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file, save_file

from shared.model.checkpoint.files.tensor_files import open_tensors, read_headers
from shared.model.checkpoint.headers.contents import Contents
from shared.model.checkpoint.loading.reading import read_tensors
from shared.model.linear.scratch import Scratch
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.fakes.checkpoints.gguf import export

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 2**20
#: A file of 32 MiB; the largest tensor has 8.
SPEC = CheckpointSpec(num_layers=2, hidden_size=512, intermediate_size=4096, vocab_size=512)


def mapped_bytes(path: Path) -> int:
    """How much of a file is in this process's memory."""
    found = 0
    # Of these pages only: the sums in `smaps` are made of all memory of the process each time.
    with Path("/proc/self/pagemap").open("rb") as pages:
        for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
            if not line.endswith(f" {path}"):
                continue
            start, end = (int(each, 16) // PAGESIZE for each in line.split()[0].split("-"))
            pages.seek(8 * start)
            entries = np.frombuffer(pages.read(8 * (end - start)), np.uint64)
            found += int((entries >> 63).sum()) * PAGESIZE
    return found


def safetensors(folder: Path) -> Path:
    write_random_checkpoint(folder, SPEC)
    return folder / "model.safetensors"


def gguf_file(folder: Path) -> Path:
    write_random_checkpoint(folder / "hf", SPEC)
    return export(folder / "hf", folder / "model.gguf", kind=lambda *_: Type.Q8_0)


def pickled_file(folder: Path) -> Path:
    torch.save(load_file(safetensors(folder)), folder / "pytorch_model.bin")
    return folder / "pytorch_model.bin"


@pytest.mark.parametrize("make", [safetensors, gguf_file, pickled_file])
def test_pages_of_tensors_that_were_read_leave_memory(
    make: Callable[[Path], Path], tmp_path: Path
) -> None:
    path = make(tmp_path)
    headers, most = read_headers(path), 0
    assert path.stat().st_size > 8 * MIB
    for _, name, found in read_tensors(Contents(headers, {}), [path]):
        if isinstance(found, torch.Tensor):
            found.double().sum()
        else:
            found.matrix().dense(torch.float32)  # type: ignore[attr-defined]
        most = max(most, mapped_bytes(path))
        assert name in headers
    largest = max(torch.Size(header.shape).numel() * 4 for header in headers.values())
    assert 0 < most <= largest + MIB


def test_a_view_of_dropped_pages_has_its_numbers(tmp_path: Path) -> None:
    tensors = {f"t{n}": torch.randn(1024, 512) for n in range(3)}
    path = tmp_path / "model.safetensors"
    save_file(tensors, path)
    kept = {
        name: found for _, name, found in read_tensors(Contents(read_headers(path), {}), [path])
    }
    for name, found in kept.items():
        assert isinstance(found, torch.Tensor)
        assert torch.equal(found, tensors[name])


def test_what_is_no_view_of_a_file_keeps_its_numbers(tmp_path: Path) -> None:
    """Rows of queries are put in another order."""
    write_random_checkpoint(tmp_path / "hf", SPEC)
    path = export(tmp_path / "hf", tmp_path / "model.gguf")
    found = read_tensors(Contents(read_headers(path), {}), [path])
    kept = {name: tensor for _, name, tensor in found}
    with open_tensors(path) as file:
        for name, tensor in kept.items():
            assert isinstance(tensor, torch.Tensor)
            assert torch.equal(tensor, file.get_tensor(name))


def test_memory_that_was_given_back_is_used_again() -> None:
    scratch = Scratch()
    one = scratch.take((4, 8), torch.float32)
    other = scratch.take((4, 8), torch.float32)
    assert one.data_ptr() != other.data_ptr()
    place = one.data_ptr()
    scratch.give_back(one)
    assert scratch.take((2, 16), torch.bfloat16).data_ptr() == place
    scratch.give_back(other)
    large = scratch.take((64, 64), torch.float32)
    large.fill_(1.0)
    assert large.shape == (64, 64)
    scratch.give_back(torch.empty(3))
