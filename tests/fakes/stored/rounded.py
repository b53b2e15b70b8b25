"""A dense model of transformers whose linears get rounded inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    import transformers

    from tests.fakes.stored.base import RoundingWriter


class Rounded(TorchFunctionMode):
    """Rounds the inputs of products with the weights of layers, as a format says."""

    def __init__(self, writer: RoundingWriter, model: transformers.PreTrainedModel) -> None:
        super().__init__()
        self._writer = writer
        self._weights = {
            each.untyped_storage().data_ptr()
            for name, each in model.named_parameters()
            if each.ndim > 1 and not any(own in name for own in ("embed", "lm_head", "gate.weight"))
        }
        self.num_rounded = 0

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is linear and args[1].untyped_storage().data_ptr() in self._weights:
            rows = args[0].flatten(0, -2)
            with torch._C.DisableTorchFunction():
                own = [self._writer.round_inputs(row.view(1, 1, -1)).flatten() for row in rows]
            self.num_rounded += 1
            args = (torch.stack(own).view(args[0].shape), *args[1:])
        return function(*args, **(kwargs or {}))
