"""Quantised checkpoints on Triton's kernels.

`python -m tests.suites.kernels.triton_stored` interprets. Where `STORED` names a folder, it is one
that `write_all` has filled.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from shared.model.decoder.causal_lm import CausalLM
from shared.model.linear.fused import FusedLinear
from shared.model.linear.packed import PackedProduct
from shared.model.linear.rounded import CodedProduct, RoundedProduct, UnitsProduct
from shared.model.linear.stored import AsStored
from shared.model.loader import load_model
from tests.fakes.kernels.interpreted import report
from tests.fakes.model.paged_driver import PagedDriver
from tests.fakes.stored.base import quantise_checkpoint, random_weight
from tests.fakes.stored.models import FAMILIES, wants_of
from tests.fakes.stored.reading import read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Families and formats, and what their linears are multiplied by.
RUNS: dict[tuple[str, str], type] = {
    ("qwen2", "ct int4 uneven"): PackedProduct,
    ("mixtral", "fp8 blocks"): CodedProduct,
    ("phi3", "ct w8a8"): CodedProduct,
    ("qwen2", "ct mxfp4 inputs"): UnitsProduct,
}
_ONE_LAYER = {"num_hidden_layers": 1}
#: Of a matrix: its last step and its last groups are not whole ones.
SIZE = 40, 160
PROMPTS, CHUNK = [[7], [(5 * place + place * place) % 321 for place in range(11)]], 8
#: The variable of the folder with what is stored.
STORED = "BATON_STORED"
_MATRICES = "matrices.pt"


def write_all(folder: Path) -> None:
    """A checkpoint of one layer for each of `RUNS`, and a matrix in each format."""
    # The formats' own libraries and models import for seconds, which tests have paid.
    from tests.fakes.model.transformers_models import random_model, save
    from tests.fakes.stored.cases import ALL

    for family, case in RUNS:
        model_type, settings = FAMILIES[family]
        model = random_model(model_type, seed=3, **settings, **_ONE_LAYER)
        source = save(model, folder / "plain" / name_of(family, case))
        stored = folder / name_of(family, case)
        quantise_checkpoint(source, stored, ALL[case], wants_of(source))
    weight = random_weight(*SIZE)
    matrices = {case: (own.config, dict(own.write(weight).tensors)) for case, own in ALL.items()}
    torch.save(matrices, folder / _MATRICES)


def name_of(family: str, case: str) -> str:
    """Of the folder of its checkpoint."""
    return f"{family}-{case}"


@contextlib.contextmanager
def _stored() -> Iterator[Path]:
    if given := os.environ.get(STORED):
        yield Path(given)
        return
    with tempfile.TemporaryDirectory() as folder:
        write_all(Path(folder))
        yield Path(folder)


def check_same_tokens(path: Path, kind: type) -> None:
    """Token for token what PyTorch computes in float32, in chunks, decodes and company."""
    expected, ours = (
        load_model(path, dtype="float32", attention_backend=backend).model
        for backend in ("torch", "triton")
    )
    assert isinstance(ours, CausalLM)
    linears = [each for each in ours.modules() if isinstance(each, FusedLinear)]
    assert {type(each.product) for each in linears if each.product is not None} == {kind}
    answers, logits = PagedDriver(expected, block_size=8, chunk=CHUNK).generate(PROMPTS, 3)
    tokens, own = PagedDriver(ours, block_size=8, chunk=CHUNK).generate(PROMPTS, 3)
    assert tokens == answers
    for mine, plain in zip(own, logits, strict=True):
        # An input that falls to the other side of a rounding is a step away.
        allowed = 1e-4 if kind is PackedProduct else 0.05
        assert (mine - plain).abs().max() < allowed * plain.std()


def check_product(case: str, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """What PyTorch computes in float32, with the same rounded inputs, in one piece and in parts."""
    rows, columns = SIZE
    with tempfile.TemporaryDirectory() as folder:
        matrix = read(config, tensors, Path(folder), SIZE)
    method = AsStored(torch.device("cpu"), implementation="triton")
    x = random_weight(17, columns, seed=3)
    for dtype in (torch.float32, torch.bfloat16):
        linear = FusedLinear(in_size=columns, out_sizes=(rows,), bias=False, dtype=dtype)
        product = method.keep(matrix, linear)
        assert not isinstance(product, RoundedProduct)
        own = x.to(dtype)
        inputs = own.float() if matrix.inputs is None else matrix.inputs.apply(own)
        exact = inputs.double() @ matrix.dense(torch.float32).double().T
        for ours, theirs in ((product(own), exact), (product(own[:1]), exact[:1])):
            assert ours.dtype == dtype
            error = (ours.double() - theirs).norm() / theirs.norm()
            assert error < 4 * torch.finfo(dtype).eps, f"{case} in {dtype}: {error}"


def checks(folder: Path) -> dict[str, Callable[[], None]]:
    """All of them by name, of what a folder has."""
    found: dict[str, Callable[[], None]] = {}
    for case, (config, tensors) in torch.load(folder / _MATRICES).items():
        found[f"product {case}"] = partial(check_product, case, config, tensors)
    for (family, case), kind in RUNS.items():
        name = name_of(family, case)
        found[name] = partial(check_same_tokens, folder / name, kind)
    return found


if __name__ == "__main__":
    with _stored() as given:
        report(checks(given))
