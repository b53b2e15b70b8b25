"""Grammar: a docstring says 'Return x.', an answer says that something returns x."""

from __future__ import annotations

import re

# First words of docstrings that are verbs in the imperative.
_VERBS = frozenset((
    "abort", "acquire", "adapt", "add", "announce", "append", "apply", "arrange", "ask",
    "associate", "block", "byte-compile", "calculate", "call", "cast", "change", "check", "choose",
    "clean", "clear", "close", "collapse", "combine", "compare", "compile", "compress", "compute",
    "concatenate", "connect", "construct", "convert", "copy", "create", "decode", "decompress",
    "delete", "deserialize", "detect", "determine", "disable", "disassemble", "discard", "display",
    "divide", "duplicate", "enable", "encode", "ensure", "escape", "evaluate", "examine", "execute",
    "exit", "expand", "extend", "extract", "fail", "fetch", "fill", "find", "flush", "force",
    "fork", "format", "freeze", "generate", "get", "guess", "handle", "import", "increment",
    "indent", "indicate", "initialize", "insert", "install", "issue", "iterate", "join", "kill",
    "log", "look", "make", "mark", "merge", "mix", "move", "normalize", "obtain", "open", "pack",
    "pad", "parse", "partition", "perform", "pop", "prepare", "pretty-print", "print", "push",
    "put", "query", "quote", "raise", "read", "receive", "register", "release", "reload", "remove",
    "rename", "replace", "report", "represent", "reset", "resolve", "restore", "retrieve", "return",
    "reveal", "reverse", "rotate", "round", "run", "scan", "schedule", "seed", "send", "serialize",
    "set", "shuffle", "skip", "sort", "split", "start", "stop", "strip", "submit", "summarize",
    "take", "test", "tokenize", "transfer", "transform", "translate", "truncate", "try", "turn",
    "unfreeze", "unpack", "unregister", "update", "use", "verify", "wait", "wake", "walk", "wrap",
    "write", "yield",
))  # fmt: skip


def indicative(summary: str) -> str | None:
    """'Return x.' as 'returns x.'; nothing where the summary does not begin with a verb."""
    first, _, rest = summary.partition(" ")
    verb = first.lower()
    if verb.endswith("s") and (verb[:-1] in _VERBS or verb[:-2] in _VERBS or verb == "implements"):
        return f"{verb} {rest}"
    if verb not in _VERBS:
        return None
    if re.search(r"[^aeiou]y$", verb):
        verb = verb[:-1] + "ie"
    elif re.search(r"(s|x|z|ch|sh)$", verb):
        verb += "e"
    return f"{verb}s {rest}"
