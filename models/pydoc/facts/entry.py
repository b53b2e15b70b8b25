"""An entry of the standard library's documentation: a name, its signature, its first sentences."""

from __future__ import annotations

import builtins
import importlib
import inspect
import pkgutil
import re
import tomllib
import types
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.pydoc.facts.modules import CLASSES, CORE, MORE

if TYPE_CHECKING:
    from collections.abc import Iterator

BY_HAND = tomllib.loads(Path(__file__).with_name("summaries.toml").read_text(encoding="utf-8"))
MAX_SUMMARY_CHARS = 230
MAX_SIGNATURE_CHARS = 110
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z'\"`(])")
_ABBREVIATION = re.compile(r"(e\.g|i\.e|etc|vs|cf|\b[A-Z])\.$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    name: str
    kind: str  # "function", "class", "method" or "module"
    home: str  # the module or class it is in
    signature: str
    summary: str
    core: bool


def summarize(doc: str | None) -> str:
    """The first sentences of a docstring that fit, or nothing where even the first does not."""
    paragraphs = re.split(r"\n\s*\n", (doc or "").strip())
    # C functions may still carry their signature as the first paragraph.
    if len(paragraphs) > 1 and re.match(r"^[\w.]+\(.*\)", paragraphs[0]):
        paragraphs = paragraphs[1:]
    text = " ".join(paragraphs[0].split()).replace("``", "`")
    text = re.sub(r"^[\w.]+\([^)]*\)\s*(->\s*[^-:]*?)?(--|:)\s*", "", text)
    text = re.sub(r":\w+:(?=`)", "", text)
    if re.match(r"[^\w`'\"@]|\S*\w\(", text) or not re.search(r"[a-z]{2}", text):
        return ""
    if re.search(r"(={4,}|-{4,}|\*{4,}|>>>)", text):
        return ""
    summary = ""
    for sentence in _sentences(text):
        if len(summary) + len(sentence) > MAX_SUMMARY_CHARS:
            break
        summary = f"{summary} {sentence}".strip()
    if summary and summary[-1] in ":,;":
        summary = summary[:-1]
    return summary if not summary or summary[-1] in ".!?" else summary + "."


def _sentences(text: str) -> list[str]:
    sentences: list[str] = []
    for piece in _SENTENCE_END.split(text):
        if sentences and _ABBREVIATION.search(sentences[-1]):
            sentences[-1] += " " + piece
        else:
            sentences.append(piece)
    return sentences


def signature_of(value: Any) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for name, parameter in signature.parameters.items()
        if name not in ("self", "cls")
    ]
    text = str(inspect.Signature(parameters))
    # A default without a literal form prints an address, which differs from run to run.
    return "" if " at 0x" in text or "<" in text or len(text) > MAX_SIGNATURE_CHARS else text


def public_names(module: types.ModuleType) -> list[str]:
    declared = getattr(module, "__all__", None)
    if declared is not None:
        return sorted(set(declared))
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", "").lstrip("_") == module.__name__.lstrip("_")
    )


def own_doc(value: Any) -> str | None:
    """The docstring, but for a class not one that it inherits."""
    if not inspect.isclass(value):
        return inspect.getdoc(value)
    doc = vars(value).get("__doc__")
    return doc if isinstance(doc, str) else None


def module_entries(module_name: str) -> Iterator[Entry]:
    module = importlib.import_module(module_name)
    core = module_name in CORE
    prefix = "" if module is builtins else module_name + "."
    for name in public_names(module):
        value = getattr(module, name, None)
        if name.startswith("_") or isinstance(value, types.ModuleType) or not callable(value):
            continue
        kind = "class" if inspect.isclass(value) else "function"
        summary = BY_HAND["entries"].get(prefix + name) or summarize(own_doc(value))
        if summary:
            signature = signature_of(value)
            yield Entry(
                name=prefix + name, kind=kind, home=module_name, signature=signature,
                summary=summary, core=core,
            )  # fmt: skip


def method_entries(class_name: str) -> Iterator[Entry]:
    owner = pkgutil.resolve_name(class_name if "." in class_name else f"builtins:{class_name}")
    for name in sorted(vars(owner)):
        value = getattr(owner, name)
        if name.startswith("_") or not callable(value) or inspect.isclass(value):
            continue
        summary = summarize(inspect.getdoc(value))
        if summary:
            yield Entry(
                name=f"{class_name}.{name}", kind="method", home=class_name,
                signature=signature_of(value), summary=summary, core="." not in class_name,
            )  # fmt: skip


def all_entries() -> list[Entry]:
    """Every entry once, in a fixed order."""
    entries: dict[str, Entry] = {}
    for module_name in (*CORE, *MORE):
        for entry in module_entries(module_name):
            entries.setdefault(entry.name, entry)
    for class_name in CLASSES:
        for entry in method_entries(class_name):
            entries.setdefault(entry.name, entry)
    return list(entries.values())
