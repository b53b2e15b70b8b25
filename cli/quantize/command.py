"""Runs `baton quantize`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console

from cli.errors import EXIT_USAGE, CommandError
from cli.quantize.perplexity import perplexity
from cli.quantize.report import make_progress, make_table
from cli.quantize.texts import TextReader, digest, hold_out
from cli.start.interrupts import Terminated, interrupts
from shared.errors import ConfigError
from shared.model.quantize.compressed_tensors import CompressedTensorsOutput
from shared.model.quantize.output import Choices
from shared.model.quantize.planning import make_plan
from shared.model.quantize.quark import QuarkOutput
from shared.model.quantize.running import Calibration, quantise
from shared.model.quantize.scheme import find_scheme

if TYPE_CHECKING:
    from pathlib import Path

    from cli.quantize.texts import Text
    from shared.model.quantize.output import KvCache
    from shared.model.quantize.planning import Plan
    from shared.model.quantize.scheme import Scheme

EXIT_INTERRUPTED = 130
_OUTPUTS = {own.name: own for own in (CompressedTensorsOutput(), QuarkOutput())}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a run; see `command_line.quantize`."""

    model: Path
    out: Path
    scheme: str
    group_size: int | None = None
    kv_cache: KvCache | None = None
    excluded: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    calibrate: Path | None = None
    evaluate: Path | None = None
    num_samples: int = 128
    sample_tokens: int = 512
    format: str = "compressed-tensors"


@dataclass(frozen=True, slots=True)
class _Texts:
    calibration: Calibration | None
    scored: list[Text] | None


def run_quantize(options: Options) -> int:
    """Write the checkpoint and print the table; return the exit code.

    Raises:
        CommandError, ConfigError, ModelLoadError: it cannot be written.
    """
    if options.out.exists() or options.out.is_symlink():
        raise CommandError(f"{options.out} exists", advice="remove it, or name another folder")
    try:
        choices = _choices(options)
    except ConfigError as error:
        raise CommandError(str(error), exit_code=EXIT_USAGE) from error
    if choices.kv_cache is not None and options.calibrate is None:
        raise CommandError(
            "--kv-cache needs to see keys and values",
            advice="name a file of texts: --calibrate FILE",
            exit_code=EXIT_USAGE,
        )
    plan = make_plan(options.model, choices, _OUTPUTS[options.format])
    texts = _read_texts(options, plan)
    progress = Console(stderr=True)
    try:
        with interrupts():
            _write(plan, options.out, texts.calibration, choices.kv_cache, progress)
            scores = _score(options, texts.scored, progress)
    except (KeyboardInterrupt, Terminated) as interrupt:
        is_written = options.out.exists()
        rest = f"{options.out} is complete" if is_written else "the same command goes on"
        progress.print(f"stopped; {rest}", style="dim", highlight=False)
        return getattr(interrupt, "exit_code", EXIT_INTERRUPTED)
    Console().print(make_table(plan, scores), highlight=False)
    return 0


def _choices(options: Options) -> Choices:
    others = []
    for each in options.layers:
        pattern, _, name = each.rpartition("=")
        if not pattern:
            raise CommandError(f"--layer {each!r} is not PATTERN=SCHEME", exit_code=EXIT_USAGE)
        others.append((pattern, _with_group(name, options.group_size)))
    usual = find_scheme(options.scheme)
    # A group that no scheme takes is refused.
    if usual.has_free_group or not any(scheme.has_free_group for _, scheme in others):
        usual = usual.with_group(options.group_size)
    return Choices(
        usual=usual,
        others=others,
        excluded=options.excluded,
        kv_cache=options.kv_cache,
    )


def _with_group(name: str, group: int | None) -> Scheme:
    scheme = find_scheme(name)
    return scheme.with_group(group) if scheme.has_free_group else scheme


def _read_texts(options: Options, plan: Plan) -> _Texts:
    if options.calibrate is None and options.evaluate is None:
        return _Texts(None, None)
    # Perplexity asks for one token more than a text has.
    num_tokens = min(options.sample_tokens, plan.spec.num_positions - 1)
    reader = TextReader(options.model, num_samples=options.num_samples, num_tokens=num_tokens)
    seen = None if options.calibrate is None else reader.read(options.calibrate)
    scored = None if options.evaluate is None else reader.read(options.evaluate)
    if seen is not None and scored is not None and _same(options.calibrate, options.evaluate):
        seen, scored = hold_out(seen)
    calibration = None
    if seen is not None:
        calibration = Calibration([each.tokens for each in seen], digest(seen))
    return _Texts(calibration, scored)


def _same(one: Path | None, other: Path | None) -> bool:
    return one is not None and other is not None and one.samefile(other)


def _write(
    plan: Plan,
    out: Path,
    calibration: Calibration | None,
    kv_cache: KvCache | None,
    console: Console,
) -> None:
    with make_progress(console) as progress:
        task = progress.add_task("files", total=len(plan.units))
        for _ in quantise(plan, out, calibration=calibration, kv_cache=kv_cache):
            progress.advance(task)


def _score(
    options: Options, texts: list[Text] | None, console: Console
) -> tuple[float, float] | None:
    """Perplexity before and after."""
    if texts is None:
        return None
    scores = []
    for folder in (options.model, options.out):
        console.print(f"perplexity of {folder} …", style="dim", highlight=False)
        scores.append(perplexity(folder, texts))
    return scores[0], scores[1]
