"""What a check says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    #: It works, and not as well as it could.
    WARN = "warn"
    #: Something will not work.
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; `advice` says what to do about it."""

    level: Level
    subject: str
    text: str
    advice: str = ""


def ok(subject: str, text: str) -> Finding:
    """As it should be."""
    return Finding(Level.OK, subject, text)


def warn(subject: str, text: str, advice: str) -> Finding:
    """It works, and not as well as it could."""
    return Finding(Level.WARN, subject, text, advice)


def fail(subject: str, text: str, advice: str) -> Finding:
    """Something will not work."""
    return Finding(Level.FAIL, subject, text, advice)
