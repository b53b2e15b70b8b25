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
#: What must be escaped in a JSON string.
_BREAKING = ('"', "\\", *map(chr, range(0x20)))
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


def check_string_pattern(text: str, *, param: str, where: str) -> None:
    """The same for an expression whose matches stand in a JSON string, unescaped.

    Raises UnsupportedError if it may match a quote, a backslash or a control character; negated
    classes and the dot leave these out by themselves.
    """
    check_regex(text, param=param, where=where)
    for token in _TOKEN.finditer(text):
        if _may_break_string(token):
            message = (
                f"{param}{where}: {token[0][:32]!r} at position {token.start()} may match a quote, "
                "a backslash or a control character, which is not supported"
            )
            raise UnsupportedError(message, param=param)


def repeats_in_choices(text: str) -> bool:
    """Whether a repetition is part of an alternative, or of a group that is repeated itself.

    `x?` is a repetition, too. The expression must be one that `check_regex` lets through.
    """
    tokens = list(_TOKEN.finditer(text))
    #: Of each open group, and of the whole: whether it has a repetition, and an alternative.
    open_groups = [[False, False]]
    for place, token in enumerate(tokens):
        here = open_groups[-1]
        if token["escape"] is not None or token["klass"] is not None:
            continue
        if token[0].startswith("("):
            open_groups.append([False, False])
        elif token[0] == ")":
            has_repeats, has_choices = open_groups.pop()
            is_repeated = place + 1 < len(tokens) and _is_repetition(tokens[place + 1])
            if has_repeats and (has_choices or is_repeated):
                return True
            open_groups[-1][0] |= has_repeats
        elif token[0] == "|":
            here[1] = True
        elif _is_repetition(token):
            here[0] = True
    return all(open_groups[0])


def _is_repetition(token: re.Match[str]) -> bool:
    return token["low"] is not None or token[0] in ("?", "*", "+")


def _may_break_string(token: re.Match[str]) -> bool:
    klass = token["klass"]
    if klass is not None and klass.startswith("[^"):
        return False
    if klass is None and token["escape"] is None:
        return token[0] in _BREAKING
    if token["escape"] in ("D", "W", "S"):
        return False
    # An escape or a class: whatever single character it matches.
    one = re.compile(token[0] if klass is not None else _whole_escape(token))
    return any(one.fullmatch(char) for char in _BREAKING)


def _whole_escape(token: re.Match[str]) -> str:
    """With the digits that follow \\x and \\u."""
    length = {"x": 4, "u": 6}.get(token["escape"], 2)
    return token.string[token.start() : token.start() + length]


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
