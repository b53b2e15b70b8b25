"""Settings of speculation, and what is said where they are wrong."""

from __future__ import annotations

import pytest

from shared.config import load_config
from shared.engine.settings.engine import EngineConfig
from shared.engine.settings.speculation import parse_speculation
from shared.errors import ConfigError
from tests.fakes.engine.engines import make_engine
from tests.unit.engine.speculation.settings import speculate


def test_the_flag_is_read() -> None:
    text = '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 1}'
    config = load_config(EngineConfig, ["--speculative-config", text], prog="x", environ={})
    assert config.speculation is not None
    assert config.speculation.max_draft_tokens == 5
    assert EngineConfig().speculation is None


def test_suffix_needs_no_number() -> None:
    assert parse_speculation('{"method": "suffix"}').num_speculative_tokens == 24


def test_a_model_without_a_method_is_a_draft_model() -> None:
    named = [
        parse_speculation(f'{{"model": "{m}", "num_speculative_tokens": 1}}')
        for m in ["d/m", "ngram", "[ngram]"]
    ]
    assert [each.method for each in named] == ["draft_model", "ngram", "ngram"]


def test_the_number_follows_the_batch_size() -> None:
    config = parse_speculation(
        '{"method": "ngram", "num_speculative_tokens": 3,'
        ' "num_speculative_tokens_per_batch_size": [[1, 2, 6], [9, 64, 0]]}'
    )
    assert [config.num_for_batch(n) for n in (1, 2, 3, 8, 9, 64, 65)] == [6, 6, 3, 3, 0, 0, 3]
    assert config.max_draft_tokens == 6


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "JSON|truncated"),
        ('{"num_speculative_tokens": 5}', "method"),
        ('{"method": "ngram"}', "num_speculative_tokens"),
        ('{"method": "eagle", "num_speculative_tokens": 1}', "model must be a directory"),
        ('{"method": "ngram", "num_speculative_tokens": 0}', "num_speculative_tokens"),
        ('{"method": "ngram", "num_speculative_tokens": 129}', "num_speculative_tokens"),
        ('{"method": "ngram", "num_speculative_tokens": "5"}', "num_speculative_tokens"),
        ('{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_mix": 1}', "lookup_mix"),
        (
            '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 6}',
            "prompt_lookup_max",
        ),
        ('{"method": "suffix", "suffix_decoding_min_token_prob": 2}', "min_token_prob"),
        (
            '{"method": "suffix", "num_speculative_tokens_per_batch_size": [[1, 4, 2], [4, 8, 1]]}',
            "overlap",
        ),
    ],
)
def test_what_is_wrong_is_named(text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        EngineConfig(speculative_config=text)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"method": "magic"}, "magic.*ngram"),
        ({"method": "custom"}, "proposer_class"),
        ({"method": "custom", "proposer_class": "tests.fakes.engine.proposers:Missing"}, "Missing"),
        ({"method": "custom", "proposer_class": "no.such.module:X"}, "no.such.module"),
    ],
)
def test_a_proposer_that_cannot_be_made_is_named(fields: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make_engine(speculative_config=speculate(**fields))
