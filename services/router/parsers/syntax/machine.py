"""The base of all parsers: programs that read one character after another.

A parser is a generator that is sent the next character, so the cut of a text into pieces cannot
matter. Text that may become a call is held; if it does not, it is returned as text.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from services.router.parsers.events import (
    ContentDelta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallBegin,
)

if TYPE_CHECKING:
    from services.router.parsers.events import ParserEvent

T = TypeVar("T")

#: A program, or a part of one; returns a T.
Steps = Generator[None, str, T]
Program = Callable[[], Steps[None]]

MAX_NAME_CHARS = 256
_SPACE = " \t\r\n"
_NAME = re.compile(r"[A-Za-z0-9_.\-]+")


class MalformedError(Exception):
    """The text is no call. Never leaves a parser."""


def new_call_id() -> str:
    """Return a new id in OpenAI's format."""
    return f"call_{secrets.token_hex(12)}"


class Machine:
    """A TextParser; subclasses write `run`. `char` is the next character, "" at the end.

    White space around calls belongs to their format: the text beside them is returned without it.
    """

    def __init__(self, new_id: Callable[[], str] = new_call_id) -> None:
        self._new_id = new_id
        self.char = ""
        #: Whether white space is held until the next character is known.
        self.holds_space = True
        #: Whether a call has begun and the held text only closes it: it is dropped at the end.
        self.in_tail = False
        self._held: list[str] = []
        self._space = ""
        self._num_read = 0
        self._num_calls = 0
        self._ids: set[str] = set()
        #: In plain text: `feed` may pass all characters before one of a pattern to a function,
        #: without the program.
        self._idle: tuple[re.Pattern[str] | None, Callable[[str], None]] | None = None
        self._events: list[ParserEvent] = []
        #: Text that is not an event yet, and its kind.
        self._parts: list[str] = []
        self._kind: type[ContentDelta | ReasoningDelta] = ContentDelta
        self._in_arguments = False
        self._program = self._main()
        next(self._program)

    def run(self) -> Steps[None]:
        """Run the program. It must have read all characters when it returns."""
        raise NotImplementedError

    def feed(self, text: str) -> list[ParserEvent]:
        """See TextParser."""
        place = 0
        while place < len(text):
            if self._idle is not None:
                starts, take = self._idle
                found = starts.search(text, place) if starts else None
                end = found.start() if found else len(text)
                if end > place:
                    take(text[place:end])
                    place = end
                    continue
            self._program.send(text[place])
            place += 1
        return self._take_events()

    def finish(self) -> list[ParserEvent]:
        """See TextParser."""
        with suppress(StopIteration):
            self._program.send("")
        if not self._num_calls:
            self._put(self._space)
        return self._take_events()

    def _main(self) -> Steps[None]:
        self.char = yield
        yield from self.run()

    # Methods for programs.

    def read_text(
        self, starts: str, attempt: Program | None = None, *, once: bool = False
    ) -> Steps[None]:
        """Read the remaining text, with an `attempt` at each of the characters `starts`.

        With `once`, the first successful attempt ends it.
        """
        pattern = pattern_of(starts) if starts else None
        while self.char:
            num_read = self._num_read
            if attempt is not None and self.char in starts:
                has_succeeded = yield from self.attempt(attempt())
                if has_succeeded and once:
                    return
                if self._num_read > num_read:
                    continue
            self.text(self.char)
            yield from self.idle(pattern, self.text)

    def idle(self, starts: re.Pattern[str] | None, take: Callable[[str], None]) -> Steps[None]:
        """Go to the next character that matches `starts`; `take` gets those before it.

        The text may also end the waiting earlier.
        """
        self._idle = starts, take
        self.char = yield
        self._num_read += 1
        self._idle = None

    def attempt(self, steps: Steps[None]) -> Steps[bool]:
        """Run `steps` and return whether they succeeded.

        If not, the text that they held is text.
        """
        self.in_tail = False
        try:
            yield from steps
        except MalformedError:
            self.end_arguments()
            if self.char or not self.in_tail:
                self.give_back()
            self._held.clear()
            return False
        self._held.clear()
        return True

    def advance(self) -> Steps[None]:
        """Hold the character and go to the next one."""
        self._held.append(self.char)
        self._num_read += 1
        self.char = yield

    def skip(self) -> Steps[None]:
        """Go to the next character; the caller has used this one."""
        self._num_read += 1
        self.char = yield

    def expect(self, text: str) -> Steps[None]:
        """Read exactly this text.

        Raises:
            MalformedError: other text follows.
        """
        for expected in text:
            if self.char != expected:
                raise MalformedError
            yield from self.advance()

    def skip_space(self) -> Steps[None]:
        """Read white space, if there is any."""
        while self.char and self.char in _SPACE:
            yield from self.advance()

    def name(self) -> Steps[str]:
        """Read a function's name without quotes."""
        chars = []
        while _NAME.fullmatch(self.char):
            chars.append(self.char)
            yield from self.advance()
        return "".join(chars)

    def give_back(self) -> None:
        """Emit the held characters as text."""
        self.text("".join(self._held))
        self._held.clear()

    def drop(self) -> None:
        """Drop the held characters and white space before them: they belong to the format."""
        self._held.clear()
        self._space = ""

    def text(self, text: str) -> None:
        """Emit text of the present kind."""
        if not self.holds_space:
            self._put(text)
            return
        text = self._space + text
        seen = text.rstrip()
        self._space = text[len(seen) :]
        self._put(seen)

    def begin_call(self, name: str, call_id: str | None = None) -> None:
        """Begin a call of `name`, and drop the held characters.

        `call_id` is the model's own id of the call. It is used unless another call has it.

        Raises:
            MalformedError: `name` is empty, too long, or not valid text.
        """
        if not 0 < len(name) <= MAX_NAME_CHARS:
            raise MalformedError
        check_text(name)
        self.drop()
        self._flush()
        if call_id is None or call_id in self._ids:
            call_id = self._new_id()
        self._ids.add(call_id)
        self._events.append(ToolCallBegin(self._num_calls, call_id, name))
        self._num_calls += 1
        self._in_arguments = True
        self.in_tail = True

    def arguments(self, text: str) -> None:
        """Append `text` to the arguments of the last call."""
        self._parts.append(text)

    def end_arguments(self) -> None:
        """Complete the last call."""
        if self._in_arguments:
            self._flush()
            self._in_arguments = False

    def whole_call(self, name: str, arguments: str) -> None:
        """Emit a call that was held until its end.

        Raises:
            MalformedError: `name` is empty, too long, or not valid text.
        """
        self.begin_call(name)
        self.arguments(arguments)
        self.end_arguments()

    def speak(self, kind: type[ContentDelta | ReasoningDelta]) -> None:
        """Change the kind of later text. White space between the kinds is dropped."""
        self.drop()
        self._flush()
        self._kind = kind

    def _put(self, text: str) -> None:
        if text:
            self._parts.append(text)

    def _take_events(self) -> list[ParserEvent]:
        self._flush()
        events, self._events = self._events, []
        return events

    def _flush(self) -> None:
        text = "".join(self._parts)
        self._parts.clear()
        if not text:
            return
        if self._in_arguments:
            self._events.append(ToolCallArguments(self._num_calls - 1, text))
        else:
            self._events.append(self._kind(text))


def pattern_of(chars: str) -> re.Pattern[str]:
    """Return a pattern that matches one of these characters."""
    return re.compile(f"[{re.escape(chars)}]")


def check_name(name: str) -> None:
    """Refuse text that is no function's name, where the format does not quote names.

    Raises:
        MalformedError: it is none.
    """
    if not _NAME.fullmatch(name):
        raise MalformedError


def check_text(text: str) -> None:
    """Refuse halves of surrogate pairs: JSON can express them, an answer cannot contain them.

    Raises:
        MalformedError: there is one.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise MalformedError from error
