"""What happens to a pooled state: products, norms, and lengths of 1, in float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch.nn import functional

from shared.errors import ModelLoadError
from shared.model.checkpoint.files.checkpoint_files import find_checkpoint_files
from shared.model.checkpoint.files.tensor_files import open_tensors, read_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from torch import Tensor

    from shared.pooling.stored import StoredDense

#: Maps [n, size] to [n, other size]; float32.
Step: TypeAlias = "Callable[[Tensor], Tensor]"
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
#: By the last part of the name of PyTorch's class.
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "ReLU": functional.relu,
    "GELU": functional.gelu,
    "SiLU": functional.silu,
    "Sigmoid": torch.sigmoid,
}


@dataclass(frozen=True, slots=True)
class Linear:
    """act(x @ weight.T + bias), plus x, or a product with it, if there is a residual."""

    weight: Tensor
    bias: Tensor | None = None
    act: Callable[[Tensor], Tensor] = ACTIVATIONS["Identity"]
    is_residual: bool = False
    residual: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """See `Step`."""
        out = self.act(functional.linear(x, self.weight, self.bias))
        if not self.is_residual:
            return out
        return out + (x if self.residual is None else functional.linear(x, self.residual))


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """PyTorch's layer norm."""

    weight: Tensor
    bias: Tensor | None
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """See `Step`."""
        return functional.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)


def unit_length(x: Tensor) -> Tensor:
    """See `Step`: each row gets the length 1."""
    return functional.normalize(x, p=2.0, dim=-1)


def read_dense(stored: StoredDense) -> Linear:
    """Return a linear that sentence-transformers wrote.

    Raises:
        ModelLoadError: its activation is not known, or its files are damaged or of another size.
    """
    name = stored.activation.rpartition(".")[2]
    if name not in ACTIVATIONS or not stored.activation.startswith("torch."):
        raise ModelLoadError(
            f"{stored.folder / 'config.json'}: activation {stored.activation[:80]!r} is not "
            f"supported; supported of PyTorch's: {', '.join(ACTIVATIONS)}"
        )
    shapes: dict[str, tuple[int, ...]] = {"linear.weight": (stored.out_size, stored.in_size)}
    if stored.has_bias:
        shapes["linear.bias"] = (stored.out_size,)
    if stored.is_residual and stored.in_size != stored.out_size:
        shapes["residual.weight"] = (stored.out_size, stored.in_size)
    found = read_tensors(stored.folder, shapes)
    for tensor, shape in shapes.items():
        if tuple(found[tensor].shape) != shape:
            raise ModelLoadError(
                f"{stored.folder}: tensor {tensor!r} has shape {list(found[tensor].shape)}, its "
                f"config asks for {list(shape)}"
            )
    return Linear(
        found["linear.weight"],
        found.get("linear.bias"),
        ACTIVATIONS[name],
        stored.is_residual,
        found.get("residual.weight"),
    )


def read_tensors(folder: Path, names: Iterable[str]) -> dict[str, Tensor]:
    """Return these tensors of a folder's weights, in float32.

    Raises:
        ModelLoadError: one is missing, of a wrong dtype or not finite, or a file is damaged.
    """
    files, wanted = find_checkpoint_files(folder), set(names)
    found: dict[str, Tensor] = {}
    for path in files.shards:
        own = wanted & read_headers(path).keys()
        if own:
            with open_tensors(path) as file:
                found |= {name: _float32(path, name, file.get_tensor(name)) for name in own}
    if missing := wanted - found.keys():
        raise files.lacks(missing, len(wanted))
    return found


def _float32(path: Path, name: str, tensor: Tensor) -> Tensor:
    if tensor.dtype not in _DTYPES:
        raise ModelLoadError(
            f"{path}: tensor {name!r} has dtype {tensor.dtype}; supported: "
            f"{', '.join(map(str, _DTYPES))}"
        )
    values = tensor.to(torch.float32, copy=True)
    if not values.isfinite().all():
        raise ModelLoadError(f"{path}: tensor {name!r} has values that are not finite")
    return values
