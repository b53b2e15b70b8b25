"""Makes the plan of a checkpoint, and checks that Baton reads what will be written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.errors import ConfigError, InternalError, ModelLoadError
from shared.model.checkpoint.config import parse_spec, read_config
from shared.model.checkpoint.files.checkpoint_files import find_checkpoint_files
from shared.model.checkpoint.files.tensor_files import TensorHeader
from shared.model.checkpoint.formats.base import Module
from shared.model.checkpoint.formats.registry import READERS, with_own_file
from shared.model.checkpoint.headers.contents import Contents, read_contents
from shared.model.checkpoint.matrices.layout import FLOATS
from shared.model.checkpoint.patterns import matches
from shared.model.checkpoint.wrapper import unwrap
from shared.model.checks import check_model, uses_transformers
from shared.model.quantize.choosing import choose_pieces, module_of
from shared.model.quantize.plan import Unit, make_units
from shared.model.spec.mixers import AttentionSpec
from shared.model.weight_map import HEAD, LAYERS, Kind, name_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shared.model.checkpoint.formats.base import StoredFormat
    from shared.model.checkpoint.matrices.layout import Layout
    from shared.model.quantize.output import Choices, OutputFormat
    from shared.model.quantize.plan import Matrix, Source
    from shared.model.spec.decoder import DecoderSpec

_GGUF = ".gguf"
#: Headers of tensors that are not written yet.
_NOWHERE = Path()
_ROWS = (Kind.EMBEDDING, Kind.POSITIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A checkpoint, and what is made of it."""

    model_dir: Path
    spec: DecoderSpec
    contents: Contents
    units: tuple[Unit, ...]
    #: Of the tensors of a scheme's matrices, by its name.
    layouts: Mapping[str, Layout]
    #: The new config.json, and the decoder that it describes.
    config: Mapping[str, Any]
    new_spec: DecoderSpec
    #: By layer that keeps keys and values: its attention, as files spell it. Empty: they get no
    #: scales.
    attentions: Mapping[int, str]

    @property
    def num_bytes(self) -> int:
        """About the size of the new files."""
        return sum(source.num_bytes for unit in self.units for source in unit.sources)


def make_plan(model_dir: Path, choices: Choices, output: OutputFormat) -> Plan:
    """Return the plan of a checkpoint.

    Raises:
        ConfigError: it is quantised already, or the choices do not fit it; says what to do.
        ModelLoadError: it cannot be used.
    """
    output.check(choices)
    raw = _read_source(model_dir)
    spec = check_model(model_dir)
    contents = read_contents(find_checkpoint_files(model_dir).shards, spec)
    sources = choose_pieces(spec, contents, choices)
    _check_dtypes(sources)
    units = make_units(sources)
    head = module_of(name_of(contents.names, HEAD))
    alone = _left_alone(sources, choices.excluded)
    excluded = tuple(dict.fromkeys((*choices.excluded, head, *alone)))
    own = output.config(replace(choices, excluded=excluded))
    config = {**raw, "quantization_config": own}
    matrices = [matrix for unit in units for matrix in unit.matrices]
    return Plan(
        model_dir=model_dir,
        spec=spec,
        contents=contents,
        units=units,
        layouts=_layouts(matrices, output, READERS[output.name](own)),
        config=config,
        new_spec=parse_spec(config),
        attentions={} if choices.kv_cache is None else _attentions(spec, sources),
    )


def _read_source(model_dir: Path) -> dict[str, Any]:
    if model_dir.suffix == _GGUF:
        raise ConfigError(f"{model_dir} is a GGUF file: quantise the checkpoint it was made of")
    if not model_dir.is_dir():
        raise ConfigError(f"{model_dir} is no folder with a checkpoint")
    raw = with_own_file(read_config(model_dir), model_dir)
    if not isinstance(raw, dict) or uses_transformers(model_dir, "auto"):
        raise ConfigError(
            f"{model_dir}: no family of Baton has this architecture, and transformers' modules "
            "compute no quantised checkpoint here"
        )
    own = raw.get("quantization_config") or unwrap(raw).get("quantization_config")
    if own:
        method = own.get("quant_method") if isinstance(own, dict) else own
        raise ConfigError(
            f"{model_dir} is quantised already ({method}): quantise the checkpoint it was made of"
        )
    return raw


def _check_dtypes(sources: Sequence[Source]) -> None:
    for source in sources:
        is_matrix = any(piece.matrix is not None for piece in source.pieces)
        if is_matrix and source.header.dtype not in FLOATS:
            raise ModelLoadError(
                f"{source.header.path}: tensor {source.name!r} has dtype {source.header.dtype}; "
                f"supported: {', '.join(FLOATS)}"
            )


def _left_alone(sources: Sequence[Source], excluded: Sequence[str]) -> Iterator[str]:
    """The linears that stay as they are, but for those that the user's patterns name.

    Readers of a config take all of a model's linears for quantised, unless it names them.
    """
    for source in sources:
        if source.stored is not None and source.stored.part.kind in _ROWS:
            continue
        for piece in source.pieces:
            module = module_of(piece.name)
            is_linear = piece.matrix is None and len(piece.shape) > 1 and module != piece.name
            named = any(matches(each, (module,), "--exclude") for each in excluded)
            if is_linear and not named:
                yield module


def _layouts(
    matrices: Sequence[Matrix], output: OutputFormat, reader: StoredFormat
) -> dict[str, Layout]:
    """How the tensors of each scheme are stored, by what Baton's reader makes of the config."""
    found: dict[str, Layout] = {}
    for matrix in matrices:
        scheme = matrix.scheme
        suffixes = output.suffixes(scheme)
        headers = dict.fromkeys(suffixes, TensorHeader(_NOWHERE, (), ""))
        layout = reader.layout(Module((matrix.module,)), headers)
        wanted = scheme.weights.bits, scheme.weights.group
        if layout is None or (layout.bits, layout.group) != wanted:
            raise ConfigError(f"{matrix.module}: a pattern of --layer names it only in part")
        if found.setdefault(scheme.name, layout) != layout:
            raise InternalError(f"{matrix.module} is not stored like others of {scheme.name}")
    return found


def _attentions(spec: DecoderSpec, sources: Sequence[Source]) -> dict[int, str]:
    keeping = {number: own for number, own in spec.attentions.items() if own.kv_source is None}
    if any(not isinstance(own, AttentionSpec) for own in keeping.values()):
        raise ConfigError("--kv-cache: latent attention keeps no keys and values to scale")
    paths = {f"{LAYERS}.{number}.attention.qkv": number for number in keeping}
    return {
        paths[source.stored.part.module]: module_of(source.name).rpartition(".")[0]
        for source in sources
        if source.stored is not None and source.stored.part.module in paths
    }
