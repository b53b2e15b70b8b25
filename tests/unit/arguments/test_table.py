"""Every engine argument of vLLM has a meaning here, and each passes a start's own parser."""

from __future__ import annotations

import functools
import re
import tomllib
from pathlib import Path

import pytest

from cli.errors import CommandError
from cli.flags.options import Service
from cli.flags.service_flags import sort_flags
from scripts.arguments_page import EFFECTS, PAGE, named_test, whole_page
from shared.arguments.base import Inert, Kind, Refused, Same, Spelled
from shared.arguments.table import ARGUMENTS, GROUPS, SHORT
from shared.arguments.translate import translate
from shared.errors import ConfigError
from tests.unit.arguments.services import FLAGS, parse

TESTS = Path(__file__).parents[2]
#: Values that differ from every default.
OTHERS = {Kind.SWITCH: (), Kind.VALUE: ("7",), Kind.LIST: ("7", "8"), Kind.OBJECT: ('{"a": 7}',)}
#: A value that a spelled argument takes, where 7 is none.
SAMPLES = {
    "--dtype": "half",
    "--task": "embed",
    "--max-model-len": "4k",
    "--load-format": "pt",
    "--quantization": "int8",
    "--kv-cache-dtype": "fp8",
    "--attention-backend": "TRITON_ATTN",
    "--attention-config": '{"backend": "TRITON_ATTN"}',
    "--structured-outputs-config": '{"backend": "xgrammar", "reasoning_parser": "think"}',
    "--kv-events-config": '{"enable_kv_cache_events": true, "topic": "t"}',
    "--profiler-config": '{"profiler": "torch", "torch_profiler_dir": "/traces"}',
    "--log-level": "DEBUG",
    "--api-key": "sk-1",
    "--reasoning-config": '{"reasoning_start_str": "<a>", "reasoning_end_str": "</a>"}',
    "--ssl-cert-reqs": "2",
    "--device-memory-utilization": "0.5",
    "--distributed-executor-backend": "external_launcher",
    "--spec-method": "ngram",
}


#: Most arguments have no default that can be written.
parse_once = functools.cache(parse)


def test_no_argument_stands_twice() -> None:
    assert len(ARGUMENTS) == sum(map(len, GROUPS.values()))
    assert len(SHORT) == sum(bool(each.short) for each in ARGUMENTS.values())


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == whole_page()


def test_every_argument_has_a_test() -> None:
    named = {name for name, each in ARGUMENTS.items() if isinstance(each.meaning, Same | Spelled)}
    assert tomllib.loads(EFFECTS.read_text(encoding="utf-8"))["effect"].keys() == named
    for test in {named_test(argument) for argument in ARGUMENTS.values()}:
        path, _, function = test.partition("::")
        text = (TESTS / path).read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def {function}\(", text, re.MULTILINE), test


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_the_default_passes_a_start(name: str) -> None:
    argument = ARGUMENTS[name]
    if argument.default is None or argument.default == "" or name == "--model":
        words: list[str] = []
    elif argument.kind is Kind.SWITCH:
        words = [name if argument.default == "True" else name.replace("--", "--no-", 1)]
    else:
        words = [name, argument.default]
    if name == "--speculative-config" or (isinstance(argument.meaning, Spelled) and not words):
        words = []
    assert not translate(words).notes
    parse_once(*words)


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_another_value_does_what_the_table_says(name: str) -> None:
    argument = ARGUMENTS[name]
    words = [name, *OTHERS[argument.kind]]
    match argument.meaning:
        case Same():
            assert name in FLAGS
        case Spelled(flags=flags):
            translated = translate([name, *([SAMPLES[name]] if name in SAMPLES else words[1:])])
            written = [word for word in translated.words if word.startswith("--")]
            assert written
            named = {flag.split(".")[0] for flag in flags.split(", ")}
            assert set(written) <= FLAGS
            assert named & set(written)
        case Inert(reason=reason):
            translation = translate(words)
            assert translation.words == ()
            is_default = argument.kind is Kind.SWITCH and argument.default == "True"
            assert is_default or f"{name} has no effect here: {reason}" in translation.notes
        case Refused(reason=reason, harmless=harmless):
            with pytest.raises(ConfigError, match=name) as refused:
                translate(words)
            assert reason in str(refused.value)
            for each in harmless:
                assert translate([name, each]).words == ()


def test_a_refusal_starts_nothing() -> None:
    with pytest.raises(CommandError, match="--kv-transfer-config"):
        sort_flags(["--decode.kv-transfer-config", '{"kv_connector": "NixlConnector"}'])


def test_one_service_takes_a_spelled_argument() -> None:
    flags = sort_flags(["--decode.kv-offloading-size", "2"])
    assert flags[Service.DECODE] == ["--kv-offload-host-gib", "2"]
    assert flags[Service.PREFILL] == []
