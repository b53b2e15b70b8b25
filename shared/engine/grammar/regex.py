"""Which regular expressions can be followed: those of regular languages, matched as a whole."""

from __future__ import annotations

import re

from shared.errors import InvalidRequestError, UnsupportedError

#: Largest number in {m,n}: each repetition becomes states of an automaton.
MAX_REPEAT = 1000
MAX_CHARS = 16 * 1024

#: What stands at some place of an expression, outside of a character class.
_TOKEN = re.compile(
    r"\\(?P<escape>.)|(?P<klass>\[\^?\]?(?:\\.|[^\]\\])*\])|\((?P<group>\?[^:]?)?"
    r"|\{(?P<low>\d+)(?:,(?P<high>\d*))?\}|(?P<anchor>[\^$])|.",
    re.DOTALL,
)
_ESCAPES = {
    "b": r"the word boundary \b",
    "B": r"the word boundary \B",
    "A": r"the anchor \A",
    "Z": r"the anchor \Z",
}


def check_regex(text: str, *, param: str, where: str = "") -> None:
    """Raise an error that names the position unless the expression can be followed.

    `where` says where in `param` it stands.

    Raises:
        InvalidRequestError: it is no regular expression.
        UnsupportedError: it has what no automaton can follow.
    """
    place = f"{param}{where}"
    if len(text) > MAX_CHARS:
        message = f"{place}: a regular expression has at most {MAX_CHARS} characters"
        raise InvalidRequestError(message, param=param)
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        message = f"{place} is no regular expression: {error}"
        raise InvalidRequestError(message, param=param) from error
    for token in _TOKEN.finditer(text):
        fault = _fault(token, text)
        if fault is not None:
            message = f"{place}: {fault} at position {token.start()} is not supported"
            raise UnsupportedError(message, param=param)


def _fault(token: re.Match[str], text: str) -> str | None:
    escape, group = token["escape"], token["group"]
    if escape is not None:
        return "a back reference" if escape in "123456789" else _ESCAPES.get(escape)
    if group is not None and not text.startswith("(?:", token.start()):
        return f"a group that begins with {text[token.start() : token.start() + 3]}"
    if token["low"] is not None:
        largest = max(int(token["low"]), int(token["high"] or 0))
        return f"repeating over {MAX_REPEAT} times" if largest > MAX_REPEAT else None
    if token["anchor"] == "^" and token.start() > 0:
        return "an anchor that is not at the beginning"
    if token["anchor"] == "$" and token.end() < len(text):
        return "an anchor that is not at the end"
    return None
