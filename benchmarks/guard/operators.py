"""Counts the operators that torch dispatches. Work without torch need not wait for its import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Callable


class _OperatorCount(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types there
        self.num = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        self.num += 1
        return func(*args, **(kwargs or {}))


def count_operators(run: Callable[[], object]) -> int:
    """Operators that torch dispatches inside `run`."""
    with _OperatorCount() as count:
        run()
    return int(count.num)
