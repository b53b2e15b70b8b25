"""Facts from the language reference, by topic: 'Explain the with statement.'"""

from __future__ import annotations

import re
from pydoc_data.topics import topics

from models.pydoc.facts.entry import summarize
from models.pydoc.facts.fact import Fact

MAX_TITLE_CHARS = 40
# Openings that say nothing without the page around them. The glossary answers the important ones.
_EMPTY = re.compile(
    r"New in version|Suspend the execution|Deletion is|Below is|If no expressions"
    r"|This object|The basic|.*(the following|may only occur)"
)


def topic_facts() -> list[Fact]:
    facts: dict[str, Fact] = {}
    for key, text in sorted(topics.items()):
        heading, _, body = text.partition("\n")
        title = heading.strip().replace('"', "").lower()
        summary = _opening(body)
        if summary and len(title) <= MAX_TITLE_CHARS and "—" not in title:
            facts.setdefault(title, _fact(key, title, summary))
    return list(facts.values())


def _opening(body: str) -> str:
    """The first sentences of the first paragraph of prose, without its markup."""
    for paragraph in re.split(r"\n\s*\n", body):
        if re.match(r'[A-Z"]', paragraph) and "::=" not in paragraph:
            plain = re.sub(r"\s*\[\d+\]|\*(?=\w)|(?<=\w)\*", "", paragraph)
            summary = summarize(plain.replace('"', "`"))
            return "" if _EMPTY.match(summary) else summary
    return ""


def _fact(key: str, title: str, summary: str) -> Fact:
    return Fact(
        questions=(
            f"Explain {title}.", f"What is {title}?", f"Tell me about {title}.",
            f"How does {title} work?", f"Describe {title}.", f"What does {title} do?",
            f"{title}", f"{title}?", f"Help on {key}.", f"What are {title}?",
        ),
        held_out=(f"Could you explain {title} to me?",),
        answer=summary,
        weight=3,
    )  # fmt: skip
