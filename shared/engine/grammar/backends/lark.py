"""Grammars in Lark's notation, which OpenAI's custom tools and vLLM's `grammar` have."""

from __future__ import annotations

import re

#: What stands in no line of Lark, but for texts and comments.
_RULE_OF_GBNF = re.compile(r"^\s*[A-Za-z_][\w-]*\s*::=", re.MULTILINE)
_START = re.compile(r"^\s*[?!]?start\b[^:\n]*:", re.MULTILINE)

NEITHER = "there is neither a rule such as `root ::= …` (GBNF) nor `start: …` (Lark)"


def is_lark(text: str) -> bool:
    """Return whether a grammar is in Lark; otherwise it is in GBNF.

    Raises:
        ValueError: it is in neither.
    """
    if _RULE_OF_GBNF.search(text):
        return False
    if not _START.search(text):
        raise ValueError(NEITHER)
    return True
