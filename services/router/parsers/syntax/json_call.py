"""A call as a JSON object: {"name": …, "arguments": {…}}, parsed as it arrives.

Arguments are passed on as the model wrote them, from their opening to their closing brace.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from services.router.parsers.syntax.machine import MalformedError, check_text
from services.router.parsers.syntax.marks import MarkMachine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from services.router.parsers.syntax.machine import Steps

    IsKnown = Callable[[str], bool]

_NAMES = ("name", "tool_name")
_ARGUMENTS = ("arguments", "parameters")
#: Some models write these keys as well. Any other key shows that the object is no call.
_IGNORED = ("type", "id", "tool_call_id")
_ENDS = " \t\r\n,}]"


def any_name(name: str) -> bool:
    """Accept every name, for formats that mark their calls."""
    del name
    return True


class JsonMachine(MarkMachine):
    """A machine that can parse calls in JSON."""

    def call_object(
        self, is_known: IsKnown = any_name, arguments: Sequence[str] = _ARGUMENTS
    ) -> Steps[None]:
        """Read one call. `arguments`: the keys that they may have.

        The call begins as soon as its name and the first brace of its arguments are known. From
        there on it is a call, whatever text follows.

        Raises:
            MalformedError: it is no call, its function is not `is_known`, or a call's object has
                further keys.
        """
        yield from self.expect("{")
        self.in_tail = False
        yield from self.skip_space()
        name: str | None = None
        held: str | None = None
        while self.char != "}":
            key = yield from self._key()
            if key in _NAMES and name is None:
                name = yield from self._string()
                if not is_known(name):
                    raise MalformedError
                if held is not None:
                    self.whole_call(name, held)
            elif key in arguments and held is None:
                held = yield from self._arguments(name)
            elif key in _IGNORED:
                yield from self._value()
            else:
                raise MalformedError
            yield from self._end_of_member()
        yield from self.advance()
        if name is None:
            raise MalformedError
        if held is None:
            self.whole_call(name, "{}")
        self.drop()

    def keyed_object(self) -> Steps[None]:
        """Read one call whose name is the key of its arguments.

        Raises:
            MalformedError: it is no such call.
        """
        yield from self.expect("{")
        self.in_tail = False
        yield from self.skip_space()
        name = yield from self._key()
        yield from self.streamed_object(name)
        yield from self.skip_space()
        yield from self.expect("}")
        self.drop()

    def call_list(self, call: Callable[[], Steps[None]]) -> Steps[None]:
        """Read [call, call, …] with at least one call.

        Raises:
            MalformedError: the text is no such list.
        """
        yield from self.expect("[")
        while True:
            yield from self.skip_space()
            yield from call()
            yield from self.skip_space()
            if self.char != ",":
                break
            yield from self.advance()
        yield from self.expect("]")
        self.drop()

    def streamed_object(self, name: str, call_id: str | None = None) -> Steps[None]:
        """Read an object and pass it on as the arguments of a call of `name` while it arrives.

        `call_id`: see `begin_call`.

        Raises:
            MalformedError: the text is no object, or ends within it.
        """
        if self.char != "{":
            raise MalformedError
        self.begin_call(name, call_id)
        yield from self._scan(self.arguments, self.skip)
        self.end_arguments()

    def _arguments(self, name: str | None) -> Steps[str]:
        """Read a call's arguments; hold them if its name is not known yet."""
        if self.char == "{" and name is not None:
            yield from self.streamed_object(name)
            return ""
        text = yield from self._held_arguments()
        if name is not None:
            self.whole_call(name, text)
        return text

    def _held_arguments(self) -> Steps[str]:
        parts: list[str] = []
        if self.char == "{":
            yield from self._scan(parts.append, self.advance)
            return "".join(parts)
        if self.char == '"':
            # An object within a string, as in OpenAI's API.
            text = yield from self._string()
            if not _is_object(text):
                raise MalformedError
            return text
        yield from self.expect("null")
        return "{}"

    def _key(self) -> Steps[str]:
        key = yield from self._string()
        yield from self.skip_space()
        yield from self.expect(":")
        yield from self.skip_space()
        return key

    def _end_of_member(self) -> Steps[None]:
        yield from self.skip_space()
        if self.char == ",":
            yield from self.advance()
            yield from self.skip_space()
        elif self.char != "}":
            raise MalformedError

    def _string(self) -> Steps[str]:
        """Read a string; raise MalformedError for other text."""
        parts: list[str] = []
        if self.char != '"':
            raise MalformedError
        yield from self._scan(parts.append, self.advance)
        try:
            text = str(json.loads("".join(parts), strict=False))
        except ValueError as error:
            raise MalformedError from error
        check_text(text)
        return text

    def _value(self) -> Steps[None]:
        """Read a value and ignore it."""
        if self.char and self.char in '{["':
            yield from self._scan(lambda _: None, self.advance)
            return
        while self.char and self.char not in _ENDS:
            yield from self.advance()

    def _scan(self, take: Callable[[str], None], step: Callable[[], Steps[None]]) -> Steps[None]:
        """Read an object, a list or a string to its end; check only brackets and quotes.

        Raises:
            MalformedError: the text ends within it.
        """
        depth = 0
        in_string = is_escaped = False
        while self.char:
            char = self.char
            take(char)
            if in_string:
                in_string = is_escaped or char != '"'
                is_escaped = char == "\\" and not is_escaped
            elif char == '"':
                in_string = True
            elif char in "{[":
                depth += 1
            elif char in "}]":
                depth -= 1
            yield from step()
            if depth == 0 and not in_string:
                return
        raise MalformedError


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
