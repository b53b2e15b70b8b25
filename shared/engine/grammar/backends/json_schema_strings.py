"""Strings of a JSON Schema as patterns, where a backend alone would allow invalid text.

Seen by `make conformance` with xgrammar 0.2.8: a length allows control characters, which JSON
forbids; the dot allows bytes that are not UTF-8; every month has 31 days; if a group such as
`(x{1,6})?` is absent, its inner repetition may still occur. With llguidance 1.9.1: a minute may
have 61 seconds.
"""

from __future__ import annotations

from typing import Any

from shared.request.grammar.regex import repeats_in_choices

#: Any character that represents itself in a JSON string: no quote, backslash, control character or
#: surrogate.
_CHARACTER = "[ !#-\\[\\]-~\u00a0-\ud7ff\ue000-\U0010ffff]"
#: Not 0000, which some readers do not accept as a year.
_YEAR = r"(\d\d\d[1-9]|\d\d[1-9]0|\d[1-9]00|[1-9]000)"
#: Without the 29th of February, which only some years have.
_MONTHS = r"(0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)"
_DAY = rf"({_MONTHS}|02-(0[1-9]|1\d|2[0-8]))"
_FRACTION = "|".join(r"\." + r"\d" * num for num in range(1, 7))
_TIME = rf"([01]\d|2[0-3]):[0-5]\d:[0-5]\d({_FRACTION})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
_FORMATS = {
    "date": f"{_YEAR}-{_DAY}",
    "date-time": f"{_YEAR}-{_DAY}T{_TIME}",
    "time": _TIME,
}


class InexactPatternError(ValueError):
    """A pattern that xgrammar would follow only approximately."""


def exact_strings(schema: dict[str, Any]) -> dict[str, Any]:
    """Return one schema, changed in place, with patterns for lengths and formats.

    Raises:
        InexactPatternError: its pattern repeats in choices.
    """
    if repeats_in_choices(schema.get("pattern", "")):
        raise InexactPatternError(schema["pattern"])
    low, high = schema.pop("minLength", None), schema.pop("maxLength", None)
    if low is not None or high is not None:
        schema["pattern"] = f"^{_CHARACTER}{{{low or 0},{'' if high is None else high}}}$"
    return exact_formats(schema)


def exact_formats(schema: dict[str, Any]) -> dict[str, Any]:
    """Return one schema, changed in place, with patterns for formats alone."""
    pattern = _FORMATS.get(schema.get("format", ""))
    if pattern is not None:
        del schema["format"]
        schema["pattern"] = f"^{pattern}$"
    return schema
