"""Quantised rows, KV write and attention: PyTorch here, Triton in an interpreter of its own."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
import torch

from kernels.kv_write import kv_write
from kernels.kv_write.cache import QuantizedCache
from kernels.paged_attention import paged_attention
from kernels.paged_attention.scores import Scores
from kernels.quantize_rows import quantize_rows
from tests.fakes.kernels.interpreted import run_interpreted
from tests.fakes.model.paged_driver import make_metadata
from tests.suites.kernels.quantized_cache import checks
from tests.suites.kernels.quantized_cache import interpreted as interpreted_checks

if TYPE_CHECKING:
    from collections.abc import Mapping

CHECKS = checks("torch")


@pytest.fixture(scope="module")
def interpreted() -> Mapping[str, str | None]:
    """What the interpreter said of each check."""
    pytest.importorskip("triton")
    return run_interpreted("tests.suites.kernels.quantized_cache")


@pytest.mark.parametrize("name", CHECKS)
def test_torch_does_as_defined(name: str) -> None:
    CHECKS[name]()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", interpreted_checks())
def test_triton_does_as_defined(name: str, interpreted: Mapping[str, str | None]) -> None:
    assert interpreted[name] is None, interpreted[name]


def make_cache(dtype: torch.dtype = torch.int8) -> QuantizedCache:
    shape = (2, 1, 2, 2, 8, 16)
    return QuantizedCache(torch.ones(shape).to(dtype), torch.ones(shape[:-1]))


def decode(*, seq_lens_list: tuple[int, ...] = (4,), **changes: Any) -> torch.Tensor:
    """A decode of one token after 3, with some arguments changed."""
    batch = make_metadata((1,), (4,), ((1,),), 8)
    arguments = {
        "q": torch.ones(1, 4, 16),
        "kv_cache": make_cache(),
        "layer": 0,
        "batch": dataclasses.replace(batch, seq_lens_list=seq_lens_list),
        "scores": Scores(scale=1.0),
    }
    return paged_attention(**{**arguments, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": torch.ones(1, 4, 8)}, "does not fit 2 key/value heads of 16"),
        ({"q": torch.ones(1, 3, 16)}, "does not fit 2 key/value heads"),
        ({"q": torch.ones(2, 4, 16)}, "do not describe 2 tokens"),
        ({"seq_lens_list": (9,)}, "1 blocks do not hold 9 tokens"),
        ({"scores": Scores(scale=1.0, window=0)}, "window must be at least 1"),
        ({"implementation": "cuda"}, "no implementation 'cuda'"),
    ],
)
def test_decode_refuses_what_does_not_fit(changes: dict[str, Any], message: str) -> None:
    assert decode().shape == (1, 4, 16)
    with pytest.raises(ValueError, match=message):
        decode(**changes)


def test_the_others_refuse_what_does_not_fit() -> None:
    k = torch.ones(2, 2, 16)
    with pytest.raises(ValueError, match=r"must be \(2, 2, 16\)"):
        kv_write(k, k[:1], make_cache(), 0, torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="no implementation 'cuda'"):
        kv_write(k, k, make_cache(), 0, torch.tensor([1, 2]), implementation="cuda")
    with pytest.raises(ValueError, match="no implementation 'cuda'"):
        quantize_rows(k, torch.int8, implementation="cuda")
    with pytest.raises(ValueError, match=r"not torch\.int16"):
        quantize_rows(k, torch.int16)
    with pytest.raises(ValueError, match="must be of"):
        make_cache(torch.int16)
    with pytest.raises(ValueError, match="do not fit values"):
        QuantizedCache(torch.ones(2, 1, 2, 2, 8, 16).to(torch.int8), torch.ones(2, 1, 2, 2, 9))
