"""KV write and paged attention: PyTorch in this process, Triton in an interpreter of its own."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
import torch

from kernels.kv_write import kv_write
from kernels.paged_attention import paged_attention
from kernels.paged_attention.scores import Scores
from tests.fakes.kernels.interpreted import run_interpreted
from tests.fakes.model.paged_driver import make_metadata, poisoned_cache
from tests.suites.kernels.attention_kernels import CASES, DIVIDED, check_attention

if TYPE_CHECKING:
    from collections.abc import Mapping


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("case", CASES)
def test_torch_attends_as_defined(case: str) -> None:
    check_attention(CASES[case], "torch")


@pytest.fixture(scope="module")
def interpreted() -> Mapping[str, str | None]:
    """What the interpreter said of each case."""
    pytest.importorskip("triton")
    return run_interpreted("tests.suites.kernels.attention_kernels")


@pytest.mark.parametrize("case", CASES)
def test_triton_attends_as_defined(case: str, interpreted: Mapping[str, str | None]) -> None:
    assert interpreted[case] is None, interpreted[case]


@pytest.mark.parametrize("case", DIVIDED)
def test_the_kernel_divides_as_the_rule_says(
    case: str, interpreted: Mapping[str, str | None]
) -> None:
    assert interpreted[f"division-{case}"] is None, interpreted[f"division-{case}"]


def attend(*, seq_lens_list: tuple[int, ...] = (4,), **changes: Any) -> torch.Tensor:
    """A decode of one token after 3, with some arguments changed."""
    metadata = make_metadata((1,), (4,), ((1,),), 8)
    arguments = {
        "q": torch.ones(1, 4, 16),
        "kv_cache": torch.ones(2, 1, 2, 2, 8, 16),
        "layer": 0,
        "batch": dataclasses.replace(metadata, seq_lens_list=seq_lens_list),
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
        ({"scores": Scores(scale=0.0)}, "scale must be positive"),
        ({"scores": Scores(scale=1.0, softcap=0.0)}, "softcap must be positive"),
        ({"scores": Scores(scale=1.0, sinks=torch.ones(3))}, "sinks do not fit 4 heads"),
        ({"scores": Scores(scale=1.0, window=0)}, "window must be at least 1"),
        ({"kv_cache": torch.ones(2, 1, 2, 2, 16, 8).mT}, "needs contiguous blocks"),
        ({"implementation": "cuda"}, "no implementation 'cuda'"),
        (
            {"implementation": "triton", "kv_cache": torch.ones(2, 1, 1, 2, 8, 16)},
            "no implementation 'triton' for 1 kinds",
        ),
    ],
)
def test_attention_refuses_what_does_not_fit(changes: dict[str, Any], message: str) -> None:
    assert attend().shape == (1, 4, 16)
    with pytest.raises(ValueError, match=message):
        attend(**changes)


def test_the_write_refuses_what_does_not_fit() -> None:
    cache, slots = poisoned_cache(2, 1, 2, 8, 16), torch.tensor([3, 4])
    k = torch.ones(2, 2, 16)
    with pytest.raises(ValueError, match=r"must be \(2, 2, 16\)"):
        kv_write(k, k[:1], cache, 0, slots)
    with pytest.raises(ValueError, match="no implementation 'triton' for this cache"):
        kv_write(k, k, cache, 0, slots, implementation="triton")
    with pytest.raises(ValueError, match="for this cache of 2 kinds"):
        kv_write(k, None, cache, 0, slots)


def test_external_memory_serves_as_cache() -> None:
    memory = bytearray(2 * 2 * 1 * 4 * 8 * 4)
    cache = torch.frombuffer(memory, dtype=torch.float32).view(2, 1, 2, 1, 4, 8)
    kv_write(torch.full((1, 1, 8), 2.0), torch.full((1, 1, 8), 3.0), cache, 0, torch.tensor([6]))
    written = torch.frombuffer(memory, dtype=torch.float32).view(2, 1, 2, 1, 4, 8)
    assert written[1, 0, 0, 0, 2].tolist() == [2.0] * 8
    assert written[1, 0, 1, 0, 2].tolist() == [3.0] * 8
    assert int(written.count_nonzero()) == 16
