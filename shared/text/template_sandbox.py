"""The sandbox of chat templates, with bounds on one rendering's time and memory.

A checkpoint's template is untrusted code, and clients choose the values it works on. Jinja's
sandbox protects the process; this protects CPU time and memory.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import jinja2

#: Maximum of pieces of one rendering. Real templates write some tens per message.
MAX_CHARS = 16_000_000
MAX_PIECES = 1_000_000
#: Maximum of steps of all loops over `range` in one rendering.
MAX_COUNTED = 1_000_000
#: Maximum of characters or items that one operation may make from few.
MAX_REPEATED = 1_000_000


_PADDING = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})
#: A width of more than five digits, or one given as an argument.
_WIDE = re.compile(r"\d{6}|\*|:[^}]*\{")


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Refuses operations with large results of small operands: products, powers, padding by `%`."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name in ("center", "indent"):
            self.filters[name] = _sized(self.filters[name])
        # It writes any requested number of random paragraphs.
        del self.globals["lipsum"]
        self.filters["format"] = _formatted(self.filters["format"])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Check the size of an operation's result, then compute it. Raises SecurityError."""
        if operator == "%" and isinstance(left, str):
            _check_format(left)
        if operator == "**" and not _is_small_power(left, right):
            raise SecurityError("a power is too large")
        if operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(value, str | bytes | list | tuple) and isinstance(times, int):
                    _check_size(len(value) * times)
                if isinstance(value, int):
                    _check_size(value.bit_length())
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Check a template's call, then make it."""
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            if obj.__name__ in _PADDING:
                _check_size(max((arg for arg in args if isinstance(arg, int)), default=0))
            elif obj.__name__ in ("format", "format_map"):
                _check_format(owner)
        return super().call(context, obj, *args, **kwargs)


def render(template: jinja2.Template, variables: Mapping[str, Any]) -> str:
    """Return the template's text.

    Raises:
        jinja2.TemplateError: it takes too long or becomes too large, or the template raises it.
    """
    budget = _Budget()
    pieces: list[str] = []
    num_chars = 0
    for piece in template.generate({**variables, "range": budget.range}):
        num_chars += len(piece)
        pieces.append(piece)
        if num_chars > MAX_CHARS or len(pieces) > MAX_PIECES:
            raise SecurityError("the chat template writes too much")
    return "".join(pieces)


class _Budget:
    """Counts steps of loops, so that nested loops end as well."""

    def __init__(self) -> None:
        self._left = MAX_COUNTED

    def range(self, *args: int) -> _Counted:
        """Return Python's `range`, with every step counted."""
        return _Counted(range(*args), self)

    def spend(self) -> None:
        """Count one step of a loop. Raises SecurityError above the limit."""
        self._left -= 1
        if self._left < 0:
            raise SecurityError("the chat template counts too far")


class _Counted:
    """A range whose every step is counted."""

    def __init__(self, numbers: range, budget: _Budget) -> None:
        self._numbers = numbers
        self._budget = budget

    def __iter__(self) -> Iterator[int]:
        for number in self._numbers:
            self._budget.spend()
            yield number

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, place: int) -> int:
        return self._numbers[place]

    def __contains__(self, value: object) -> bool:
        return value in self._numbers


def _is_small_power(base: Any, exponent: Any) -> bool:
    if isinstance(base, int) and isinstance(exponent, int):
        return base.bit_length() * max(exponent, 0) <= MAX_REPEATED
    return isinstance(base, int | float) and isinstance(exponent, int | float)


def _sized(filter_: Callable[..., str]) -> Callable[..., str]:
    def checked(text: str, *args: Any, **options: Any) -> str:
        width = args[0] if args else options.get("width", 0)
        _check_size(width if isinstance(width, int) else len(str(width)))
        return filter_(text, *args, **options)

    return checked


def _formatted(filter_: Callable[..., str]) -> Callable[..., str]:
    def checked(text: str, *args: Any, **options: Any) -> str:
        _check_format(str(text))
        return filter_(text, *args, **options)

    return checked


def _check_format(text: str) -> None:
    if _WIDE.search(text):
        raise SecurityError("a format of the chat template is too wide")


def _check_size(size: int) -> None:
    if size > MAX_REPEATED:
        raise SecurityError(f"an operation of the chat template makes {size} items of a few")
