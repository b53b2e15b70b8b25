"""A dense model of transformers whose linears get rounded inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable

    import transformers

    from tests.fakes.stored.base import RoundingWriter


class Rounded(TorchFunctionMode):
    """Rounds the inputs of products with the weights of layers, as a format says."""

    def __init__(
        self,
        model: transformers.PreTrainedModel,
        writer_of: Callable[[str], RoundingWriter | None],
    ) -> None:
        """writer_of: of a weight, by its name in the module; None: its inputs stay as they are."""
        super().__init__()
        self._writers = {
            each.untyped_storage().data_ptr(): writer
            for name, each in model.named_parameters()
            if each.ndim > 1 and (writer := writer_of(name)) is not None
        }
        self.num_rounded = 0

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        place = args[1].untyped_storage().data_ptr() if function is linear else None
        if place in self._writers:
            rows = args[0].flatten(0, -2)
            with torch._C.DisableTorchFunction():
                own = [
                    self._writers[place].round_inputs(row.view(1, 1, -1)).flatten() for row in rows
                ]
            self.num_rounded += 1
            args = (torch.stack(own).view(args[0].shape), *args[1:])
        return function(*args, **(kwargs or {}))
