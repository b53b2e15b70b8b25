"""Grammars in Lark within the JSON of a call: the router's tag, compiled as workers do it."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
import xgrammar
from xgrammar.testing import _is_grammar_accept_string

from services.router.parsers.base import ToolSpec
from services.router.parsers.find import TOOL_FORMATS
from services.router.parsers.formats.json_list import JsonListFormat
from shared.engine.grammar.backends.json_text import in_json_string
from shared.engine.grammar.backends.xgrammar import XgrammarBackend
from shared.engine.grammar.positions import advance
from shared.errors import InvalidRequestError, UnsupportedError
from shared.generation.grammar import structural_tag_grammar

if TYPE_CHECKING:
    from shared.text.token_table import TokenTable
    from shared.text.tokenizer import Tokenizer

#: A language of patches: lines of any text, with quotes, backslashes and tabs in them.
PATCH = r"""
start: begin hunk+ end
begin: "*** Begin" LF
end: "*** End" LF?
hunk: "*** File: " filename LF line+
filename: /(.+)/
line: ("+" | "-" | " ") /(.*)/ LF -> text

%import common.LF
"""
GOOD = '*** Begin\n*** File: a/é"\\b.py\n+x = "\\t"\t\x01\n-\n*** End'
CITY = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
#: The library's helper reads texts up to a NUL.
ALPHABET = 'ab"\\\n\t\x1f\x7fé\u2028😀 -]^['


def tools(grammar: str = PATCH) -> list[ToolSpec]:
    return [
        ToolSpec(
            name="patch",
            parameters={},
            param="tools[0].custom.format",
            is_custom=True,
            lark=grammar,
        ),
        ToolSpec(name="city", parameters=CITY),
    ]


def spec_of(grammar: str = PATCH, *, parallel: bool = True) -> Any:
    tag = JsonListFormat().tag_for(tools(grammar), parallel=parallel)
    return structural_tag_grammar(tag, param="tools")


def calls(*calls: tuple[str, Any]) -> str:
    found = [{"name": name, "parameters": arguments} for name, arguments in calls]
    return json.dumps(found, ensure_ascii=False)


def test_an_input_is_held_to_its_grammar(table: TokenTable, tokenizer: Tokenizer) -> None:
    backend, [eos, *_] = XgrammarBackend(table), table.eos_token_ids
    one, two = backend.compile(spec_of(parallel=False)), backend.compile(spec_of())
    patch, city = ("patch", {"input": GOOD}), ("city", {"city": "Rome"})
    for text, is_one, is_two in (
        (calls(patch), True, True),
        (calls(patch, city, patch), False, True),
        (calls(("patch", {"input": GOOD.replace("+x", "x")})), False, False),
        (calls(("patch", {"input": GOOD + "!"})), False, False),
        (calls(("city", {"city": "Oslo"})), False, False),
        ("[]", False, False),
    ):
        for compiled, fits in ((one, is_one), (two, is_two)):
            ids = [*tokenizer.encode(text), eos]
            assert (advance(compiled.start([eos]), ids) is None) == fits, text
    events = JsonListFormat().forced_parser({tool.name: tool for tool in tools()})
    found = events.feed(calls(patch)) + events.finish()
    assert json.dumps(GOOD, ensure_ascii=False) in "".join(getattr(e, "text", "") for e in found)


def test_an_input_is_held_among_text_that_is_free(table: TokenTable, tokenizer: Tokenizer) -> None:
    """Hermes' calls: with line breaks within the marks or without, one or several."""
    [eos, *_] = table.eos_token_ids
    grammars = [
        XgrammarBackend(table).compile(structural_tag_grammar(tag, param="tools"))
        for parallel in (False, True)
        if (tag := TOOL_FORMATS["hermes"].tag_among_text(tools(), parallel=parallel))
    ]

    def call(name: str, arguments: Any, space: str = "\n") -> str:
        body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        return f"<tool_call>{space}{body}{space}</tool_call>"

    good, any_city = call("patch", {"input": GOOD}), call("city", {"city": ["é", {}]})
    cases = {
        'I say "{é}" <and stop.': (True, True),
        f"First:\n{good}": (True, True),
        call("patch", {"input": GOOD}, space=""): (True, True),
        f"{any_city}": (True, True),
        f"{good}\n{any_city} and {good}": (False, True),
        call("patch", {"input": "+x"}): (False, False),
        call("other", {}): (False, False),
        "<tool_call>me": (False, False),
        good[:-1]: (False, False),
    }
    for text, fits in cases.items():
        ids = [*tokenizer.encode(text), eos]
        found = tuple(advance(each.start([eos]), ids) is None for each in grammars)
        assert found == fits, text


@pytest.mark.parametrize("seed", range(20))
def test_the_strings_are_those_of_the_texts(seed: int) -> None:
    """Random grammars of one repeated group; a text fits if its JSON does."""
    rng = random.Random(seed)

    def written(text: str) -> str:
        return "".join(f"\\U{ord(char):08x}" for char in text)

    def characters() -> str:
        chosen = written("".join(rng.sample(ALPHABET, rng.randint(1, 5))))
        # ^ at the beginning is what the library cannot print.
        not_, first = ("^", "") if rng.random() < 0.4 else ("", "a")
        return f"[{not_}{first}{chosen}]"

    literal = "".join(rng.choices(ALPHABET, k=3))
    rule = f'root ::= ({characters()} "{written(literal)}"){{1,2}} {characters()}*'
    plain = xgrammar.Grammar.from_ebnf(rule)
    quoted = xgrammar.Grammar.from_ebnf(in_json_string(str(plain)))
    found = set()
    for _ in range(30):
        rest = "".join(rng.choices(ALPHABET, k=rng.randint(0, 2)))
        text = rng.choice(ALPHABET) + (literal if rng.random() < 0.9 else "a") + rest
        fits = _is_grammar_accept_string(plain, text)
        found.add(fits)
        inside = json.dumps(text, ensure_ascii=False)[1:-1]
        assert _is_grammar_accept_string(quoted, inside) == fits, (rule, text)
    assert found == {False, True}


@pytest.mark.parametrize(
    ("grammar", "error", "reason"),
    [
        ("start: A", InvalidRequestError, "unknown name 'A'"),
        ("hello", InvalidRequestError, "neither"),
        (r"start: /a(?=b)/", InvalidRequestError, "column 8"),
        ('start: "a" %json {"type": "string"}', UnsupportedError, "terminals"),
        (r"start: /[\^a]/", UnsupportedError, "begins with an escaped"),
        (r'start: "a\u0000"', UnsupportedError, "NUL"),
    ],
)
def test_what_no_input_can_be_held_to_is_refused_under_the_tool_s_name(
    table: TokenTable, grammar: str, error: type[InvalidRequestError], reason: str
) -> None:
    with pytest.raises(error, match=reason) as caught:
        XgrammarBackend(table).compile(spec_of(grammar))
    assert caught.value.param == "tools[0].custom.format"
