"""Templates that want too much: refused, in bounded time and memory."""

from __future__ import annotations

import pytest

from shared.errors import InvalidRequestError
from shared.text.chat_template import ChatTemplate

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(9999) %}{% for j in range(999) %}{{ i }}{% endfor %}{% endfor %}",
        "{{ 'a' * 10**9 }}",
        "{{ 10**9 * [1] }}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ 'a'.center(10**9) }}",
        "{{ 'a' | center(10**9) }}",
        "{{ 'a' | indent(10**9) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' | format(10**9, 1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{% set ns = namespace(x=9) %}"
        "{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ lipsum(n=10**9) }}",
        "{{ messages | tojson(indent=10**9) }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    ],
)
def test_too_much_is_refused(source: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ChatTemplate({"default": source}, {}).render(MESSAGES)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for i in range(3) %}{{ i }}{% endfor %}", "012"),
        ("{{ range(5) | length }}{{ 3 in range(5) }}{{ range(2, 9, 3)[1] }}", "5True5"),
        ("{{ '-' * 3 }}{{ 2 ** 3 }}{{ 7 % 4 }}{{ 2.5 * 2 }}", "---835.0"),
        ("{{ '%02d' % 5 }}{{ '%s' | format('a') }}{{ '{:>3}'.format(1) }}", "05a  1"),
        ("{{ 'a' | center(3) }}{{ 'a'.ljust(2) }}|", " a a |"),
    ],
)
def test_the_usual_is_as_before(source: str, text: str) -> None:
    assert ChatTemplate({"default": source}, {}).render(MESSAGES) == text
