"""Questions and answers about the entries, modules and topics of Python's documentation."""

from __future__ import annotations

import importlib
from collections import Counter
from typing import TYPE_CHECKING

from models.pydoc.facts.entry import BY_HAND, summarize
from models.pydoc.facts.fact import Fact
from models.pydoc.facts.grammar import indicative
from models.pydoc.facts.modules import CORE, MORE

if TYPE_CHECKING:
    from models.pydoc.facts.entry import Entry

MAX_LISTED = 14


def describe(entry: Entry) -> str:
    """The answer to 'What does X do?'."""
    if text := indicative(entry.summary):
        return f"{entry.name} {text}"
    first, _, rest = entry.summary.partition(" ")
    if first in ("A", "An", "The", "Same", "Like", "Equivalent", "Similar"):
        article = "the " if first == "Same" else ""
        return f"{entry.name} is {article}{first.lower()} {rest}"
    if entry.home == "builtins":
        return f"{entry.name} is a built-in {entry.kind}: {entry.summary}"
    if entry.kind == "method":
        return f"{entry.name} is a method of {entry.home}: {entry.summary}"
    return f"{entry.name} is a {entry.kind} of the module {entry.home}: {entry.summary}"


def entry_facts(entries: list[Entry]) -> list[Fact]:
    short_names = Counter(entry.name.rpartition(".")[2] for entry in entries)
    facts = []
    for entry in entries:
        short = entry.name.rpartition(".")[2]
        names = [entry.name]
        unique = short_names[short] == 1 and short not in (*CORE, *MORE)
        if short != entry.name and len(short) > 4 and unique:
            names.append(short)
        facts.append(_what_fact(entry, names))
        if entry.signature:
            facts.append(_how_fact(entry))
    return facts


def _what_fact(entry: Entry, names: list[str]) -> Fact:
    n, kind = entry.name, entry.kind
    questions = [
        f"What does {n} do?", f"What does {n} do?", f"What does {n} do?", f"what does {n} do",
        f"What is {n}?", f"What is {n}?", f"Explain {n}.", f"Explain {n}.", f"Tell me about {n}.",
        f"Describe {n}.", f"What is {n} for?", f"What does {n}() do?", f"What does `{n}` do?",
        f"Explain what {n} does.", f"Can you explain {n}?", f"What does the {kind} {n} do?",
        f"In Python, what does {n} do?", f"{n}", f"{n}?", f"Please explain {n} to me.",
    ]  # fmt: skip
    if not entry.signature:
        questions += [f"How do I use {n}?", f"How do I call {n}?"]
    for name in names[1:]:
        questions += [f"What does {name} do?", f"Explain {name}.", f"What is {name}?"]
    return Fact(
        questions=tuple(questions),
        held_out=(
            f"What is the purpose of {n}?", f"Could you tell me what {n} does?",
            f"I'd like to know what {n} does.", f"What does the {n} {kind} do in Python?",
        ),
        answer=describe(entry),
        weight=2 if entry.core else 1,
        follow_up=_follow_up(entry),
    )  # fmt: skip


def _follow_up(entry: Entry) -> tuple[str, str] | None:
    return ("How do I call it?", _call(entry)) if entry.signature else None


def _call(entry: Entry) -> str:
    return f"Call it as {entry.name}{entry.signature}."


def _how_fact(entry: Entry) -> Fact:
    n = entry.name
    text = indicative(entry.summary)
    return Fact(
        questions=(
            f"How do I use {n}?", f"How do I use {n}?", f"How do I call {n}?",
            f"How is {n} called?", f"What are the arguments of {n}?",
            f"What are the parameters of {n}?",
            f"Show me how to use {n}.", f"how to use {n}", f"How can I use {n}?",
        ),
        held_out=(f"What is the signature of {n}?", f"Which arguments does {n} take?"),
        answer=_call(entry) + (f" It {text}" if text else ""),
        weight=0.8 if entry.core else 0.4,
    )  # fmt: skip


def module_facts(entries: list[Entry]) -> list[Fact]:
    facts = []
    for name in (*CORE, *MORE):
        doc = importlib.import_module(name).__doc__
        summary = BY_HAND["modules"].get(name) or summarize(doc)
        if summary:
            facts.append(_module_fact(name, summary))
        for kind, plural in (("function", "functions"), ("class", "classes")):
            short = [
                entry.name.rpartition(".")[2]
                for entry in entries
                if entry.home == name and entry.kind == kind
            ]
            if len(short) > 1:
                facts.append(_list_fact(name, plural, short))
    return facts


def _module_fact(name: str, summary: str) -> Fact:
    text = indicative(summary)
    answer = (
        f"{name} is a module of Python's standard library. It {text}"
        if text
        else f"{name} is a module of Python's standard library: {summary}"
    )
    return Fact(
        questions=(
            f"What is {name}?", f"What is {name}?", f"What is the module {name}?",
            f"What is the {name} module?", f"What does the module {name} do?", f"Explain {name}.",
            f"What does the {name} module do?", f"Explain the module {name}.",
            f"Tell me about {name}.", f"Tell me about the {name} module.", f"what is {name}",
            f"What is {name} for?", f"What does {name} do?", f"import {name}",
        ),
        held_out=(f"What is the purpose of the {name} module?", f"What can I do with {name}?"),
        answer=answer,
        weight=3,
    )  # fmt: skip


def _list_fact(name: str, plural: str, short: list[str]) -> Fact:
    listed = short[:MAX_LISTED]
    names = f"{', '.join(listed[:-1])} and {listed[-1]}"
    more = " It has more." if len(short) > MAX_LISTED else ""
    place = "Python's built-in" if name == "builtins" else f"The module {name} has the"
    verb = f"{plural} include" if name == "builtins" else plural
    return Fact(
        questions=(
            f"Which {plural} are in the module {name}?", f"Which {plural} are in {name}?",
            f"List the {plural} of {name}.", f"What {plural} does {name} have?",
            f"Which {plural} does the module {name} have?", f"Name some {plural} of {name}.",
            f"List the {plural} in the {name} module.",
        ),
        held_out=(f"What are the {plural} in {name}?",),
        answer=f"{place} {verb} {names}.{more}",
        weight=2 if name in CORE else 1,
    )  # fmt: skip
