"""Checkpoints that other libraries wrote mean what those libraries read (`tests/oracles`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from shared.model.decoder.causal_lm import CausalLM
from shared.model.linear.rounded import RoundedProduct
from shared.model.loader import load_model
from tests.fakes.model.paged_driver import PagedDriver
from tests.oracles.base import (
    DENSE,
    FOLDER,
    INPUTS,
    LOGITS,
    OUTPUTS,
    PROMPT,
    ROUNDED,
    names,
    read_recording,
)
from tests.oracles.matrices import Matrices
from tests.oracles.page import PAGE, written

if TYPE_CHECKING:
    from torch import Tensor

RECORDINGS = {name: read_recording(FOLDER / name) for name in names()}
WITH_INPUTS = [name for name, each in RECORDINGS.items() if each.modules(INPUTS)]
WITH_LOGITS = [name for name, each in RECORDINGS.items() if LOGITS in each.oracle]
#: One of each method and packing.
CHANGED = [
    "autoawq-32",
    "autoround-2-uneven",
    "hqq-4",
    "torchao-int4-uneven",
    "gptqmodel-3-order",
    "gptqmodel-8-uneven",
    "quark-int8-uneven",
    "quark-mxfp6-e2m3",
    "quark-nvfp4",
    "quark-uint4-order",
]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_number_is_that_of_the_library(name: str) -> None:
    recording = RECORDINGS[name]
    matrices = Matrices(recording)
    assert recording.modules()
    for module in recording.modules():
        theirs = recording.oracle[module + DENSE]
        assert torch.equal(matrices.read(module).dense(theirs.dtype), theirs)


@pytest.mark.parametrize("name", WITH_INPUTS)
def test_inputs_are_rounded_as_the_library_rounds_them(name: str) -> None:
    recording = RECORDINGS[name]
    matrices = Matrices(recording)
    for module in recording.modules(INPUTS):
        matrix, x = matrices.read(module), recording.oracle[module + INPUTS]
        assert matrix.inputs is not None
        ours, theirs = matrix.inputs.apply(x), recording.oracle[module + ROUNDED]
        if name.startswith("modelopt"):  # multiplies by the scale's reciprocal
            torch.testing.assert_close(ours, theirs, rtol=5e-7, atol=0)
        else:
            assert torch.equal(ours, theirs)
        answers = RoundedProduct(matrix, matrix.inputs)(x)
        theirs = recording.oracle[module + OUTPUTS]
        torch.testing.assert_close(answers, theirs, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_checkpoint_is_loaded_whole(name: str) -> None:
    """With every key of its config, and with tensors that are no matrix's."""
    loaded = load_model(RECORDINGS[name].path, attention_backend="torch")
    assert isinstance(loaded.model, CausalLM)


@pytest.mark.parametrize("name", WITH_LOGITS)
def test_answers_are_those_of_the_library(name: str) -> None:
    oracle = RECORDINGS[name].oracle
    loaded = load_model(RECORDINGS[name].path, attention_backend="torch", dtype="float32")
    prompt = oracle[PROMPT].tolist()
    prompts = [prompt[: end + 1] for end in range(len(prompt))]
    _, ours = PagedDriver(loaded.model, block_size=8, chunk=13).generate(prompts, 1)
    torch.testing.assert_close(torch.cat(ours), oracle[LOGITS], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CHANGED)
def test_every_tensor_counts(name: str) -> None:
    """So the numbers above are equal because each bit of them is read."""
    recording = RECORDINGS[name]
    matrices = Matrices(recording)
    module = recording.modules()[0]
    theirs = recording.oracle[module + DENSE]
    for suffix in matrices.numbers(module):
        changed = {**matrices.tensors(module), suffix: flipped(matrices.tensors(module)[suffix])}
        assert not torch.equal(matrices.read(module, changed).dense(theirs.dtype), theirs)


def test_the_table_names_all_recordings() -> None:
    """If not: `python -m tests.oracles.page`."""
    text = PAGE.read_text(encoding="utf-8")
    assert "<!-- oracles -->" in text
    assert written(text) == text


def flipped(tensor: Tensor) -> Tensor:
    """A tensor with another lowest bit of its last number."""
    words = tensor.clone().reshape(-1).view(torch.uint8)
    words[-tensor.dtype.itemsize] ^= 1
    return words.view(tensor.dtype).reshape(tensor.shape)
