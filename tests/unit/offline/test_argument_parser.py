"""A program's own command line with the engine's arguments in it."""

from __future__ import annotations

import pytest

from baton import EngineArgs
from baton.utils.argparse_utils import FlexibleArgumentParser
from cli.places import SHIPPED_MODEL
from shared.errors import ConfigError


def test_a_program_s_parser_takes_the_engine_s_arguments() -> None:
    parser = FlexibleArgumentParser()
    parser.add_argument("--max-tokens", type=int)
    group = EngineArgs.add_cli_args(parser.add_argument_group("the engine"))
    group.set_defaults(model=str(SHIPPED_MODEL))
    line = (
        "--max_num_seqs 8 -tp 1 --no-enable-prefix-caching --max-tokens 3 --num-blocks 99 "
        "--speculative-config.method ngram --speculative-config.num_speculative_tokens 2"
    )
    args = parser.parse_args(line.split())
    assert args.max_tokens == 3
    expected = EngineArgs(
        SHIPPED_MODEL,
        max_num_seqs=8,
        enable_prefix_caching=False,
        num_blocks=99,
        speculative_config={"method": "ngram", "num_speculative_tokens": 2},
    )
    assert EngineArgs.from_cli_args(args).settings() == expected.settings()
    del args.max_tokens
    assert EngineArgs(**vars(args)).settings() == expected.settings()
    with pytest.raises(ConfigError, match="--model"):
        EngineArgs.from_cli_args(FlexibleArgumentParser().parse_args([]))
