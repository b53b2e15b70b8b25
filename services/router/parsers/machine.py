"""What all parsers are made of: programs that read one character after the other.

A parser is a generator that is sent the next character, so how a text is cut into pieces cannot
matter. What may yet become a call is held; if it does not, it is given back as text.
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

#: A program, or a part of one; it returns a T.
Steps = Generator[None, str, T]
Program = Callable[[], Steps[None]]

MAX_NAME_CHARS = 256
_SPACE = " \t\r\n"
_NAME = re.compile(r"[A-Za-z0-9_.\-]")


class MalformedError(Exception):
    """What was read is no call. Never leaves a parser."""


def new_call_id() -> str:
    """An id as OpenAI writes them."""
    return f"call_{secrets.token_hex(12)}"


class Machine:
    """A TextParser; subclasses write `run`. `char` is the next character, "" once all are read.

    White space around calls belongs to their format: the text beside them is given without it.
    """

    def __init__(self, new_id: Callable[[], str] = new_call_id) -> None:
        self._new_id = new_id
        self.char = ""
        #: Whether white space waits for what comes after it.
        self.holds_space = True
        #: A call has begun and what is held only closes it: at the end of the text it is dropped.
        self.in_tail = False
        self._held: list[str] = []
        self._space = ""
        self._num_read = 0
        self._num_calls = 0
        #: In plain text: `feed` may take all characters up to one of these without the program.
        self._is_idle = False
        self._starts: re.Pattern[str] | None = None
        self._events: list[ParserEvent] = []
        #: Text that is not an event yet, and of what kind it is.
        self._parts: list[str] = []
        self._kind: type[ContentDelta | ReasoningDelta] = ContentDelta
        self._in_arguments = False
        self._program = self._main()
        next(self._program)

    def run(self) -> Steps[None]:
        """The program. It must have read all characters when it returns."""
        raise NotImplementedError

    def feed(self, text: str) -> list[ParserEvent]:
        """See TextParser."""
        place = 0
        while place < len(text):
            if self._is_idle:
                found = self._starts.search(text, place) if self._starts else None
                end = found.start() if found else len(text)
                if end > place:
                    self.text(text[place:end])
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

    # What programs are written with.

    def read_text(
        self, starts: str, attempt: Program | None = None, *, once: bool = False
    ) -> Steps[None]:
        """All that is left is text, but where one of the characters `starts` stands, `attempt` is
        made; the first that succeeds ends it if it is to succeed `once`.
        """
        self._starts = re.compile(f"[{re.escape(starts)}]") if starts else None
        while self.char:
            num_read = self._num_read
            if attempt is not None and self.char in starts:
                has_succeeded = yield from self.attempt(attempt())
                if has_succeeded and once:
                    return
                if self._num_read > num_read:
                    continue
            self.text(self.char)
            self._is_idle = True
            self.char = yield
            self._num_read += 1
            self._is_idle = False

    def attempt(self, steps: Steps[None]) -> Steps[bool]:
        """Run `steps`, and say whether they succeeded. If not, what they held is text."""
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
        """Read exactly this.

        Raises:
            MalformedError: something else stands there.
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
        """Read the name of a function that stands without quotes."""
        chars = []
        while _NAME.fullmatch(self.char):
            chars.append(self.char)
            yield from self.advance()
        return "".join(chars)

    def give_back(self) -> None:
        """What is held is text."""
        self.text("".join(self._held))
        self._held.clear()

    def drop(self) -> None:
        """What is held, and white space before it, belongs to the format."""
        self._held.clear()
        self._space = ""

    def text(self, text: str) -> None:
        """Give out text of the present kind."""
        if not self.holds_space:
            self._put(text)
            return
        text = self._space + text
        seen = text.rstrip()
        self._space = text[len(seen) :]
        self._put(seen)

    def begin_call(self, name: str) -> None:
        """What was held so far turned out to be a call of `name`.

        Raises:
            MalformedError: nothing can have this name.
        """
        if not 0 < len(name) <= MAX_NAME_CHARS:
            raise MalformedError
        check_text(name)
        self.drop()
        self._flush()
        self._events.append(ToolCallBegin(self._num_calls, self._new_id(), name))
        self._num_calls += 1
        self._in_arguments = True
        self.in_tail = True

    def arguments(self, text: str) -> None:
        """Append `text` to the arguments of the call that was begun last."""
        self._parts.append(text)

    def end_arguments(self) -> None:
        """The last call is complete."""
        if self._in_arguments:
            self._flush()
            self._in_arguments = False

    def whole_call(self, name: str, arguments: str) -> None:
        """A call that was held until its end.

        Raises:
            MalformedError: nothing can have this name.
        """
        self.begin_call(name)
        self.arguments(arguments)
        self.end_arguments()

    def speak(self, kind: type[ContentDelta | ReasoningDelta]) -> None:
        """From here on, text is of this kind. White space between the kinds is dropped."""
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


def check_text(text: str) -> None:
    """Refuse halves of characters, which JSON can name but no answer can hold.

    Raises:
        MalformedError: there is one.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise MalformedError from error
