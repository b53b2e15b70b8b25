"""Embeddings of clients: read as data, bounded, and sent as they are."""

from __future__ import annotations

import base64
import io
import pickle
import random
import zipfile
from typing import Any

import numpy as np
import pytest
import torch

from shared.errors import InvalidRequestError
from shared.request.embeds_file import read_embeds
from shared.request.embeds_wire import (
    embeds_from_wire,
    embeds_to_wire,
    ids_from_wire,
    ids_to_wire,
    rows_from_wire,
    rows_to_wire,
)
from shared.request.prompt_embeds import (
    NO_TOKEN,
    EmbeddingRows,
    EmbedsDtype,
    PlacedRows,
    PromptEmbeds,
    known_tokens,
)

ROWS = torch.randn(6, 10, generator=torch.Generator().manual_seed(0))


def saved(content: Any, **settings: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, **settings)
    return file.getvalue()


def encoded(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def tensor_of(rows: EmbeddingRows) -> torch.Tensor:
    numbers = torch.frombuffer(bytearray(rows.data), dtype=getattr(torch, rows.dtype.value))
    return numbers.view(-1, rows.width)


@pytest.mark.parametrize(
    ("tensor", "dtype"),
    [
        (ROWS, "float32"),
        (ROWS.half(), "float16"),
        (ROWS.bfloat16(), "bfloat16"),
        (ROWS.double(), "float32"),
        (ROWS[None], "float32"),
        (ROWS.T, "float32"),
        (ROWS[1:4, 2::3], "float32"),
        (torch.nn.Parameter(ROWS), "float32"),
    ],
)
def test_a_tensor_is_read_as_torch_reads_it(tensor: torch.Tensor, dtype: str) -> None:
    found = read_embeds(encoded(saved(tensor)))
    wanted = tensor[0] if tensor.dim() == 3 else tensor
    assert found.dtype == dtype
    assert torch.equal(tensor_of(found), wanted.detach().to(getattr(torch, dtype)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (ROWS.long(), "must be of float32"),
        (ROWS.to(torch.float8_e4m3fn), "must be of float32"),
        (torch.complex(ROWS, ROWS), "not known"),
        ({"a": ROWS}, "it holds a dict"),
        ([ROWS], "it holds a list"),
        (ROWS[0], "shape"),
        (ROWS.expand(2, 6, 10), "more numbers than its storage"),
        (torch.ones(2, 6, 10), "shape"),
        (torch.ones(1, 1, 6, 10), "4 dimensions"),
        (torch.ones(0, 10), "shape"),
        (torch.full((1, 3), float("inf")), "finite"),
        (torch.full((1, 3), float("nan")).bfloat16(), "finite"),
        (torch.full((1, 3), 1e300, dtype=torch.float64), "finite"),
        (ROWS.to_sparse(), "which makes no tensor"),
    ],
)
def test_anything_else_is_refused_by_name(content: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as error:
        read_embeds(encoded(saved(content)), param="prompt_embeds[1]")
    assert error.value.param in ("prompt_embeds[1]", "prompt_embeds")


def test_no_code_of_a_client_runs() -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (pytest.fail, ("a client's code was run",))

    for raw in (saved(Evil()), saved(ROWS, _use_new_zipfile_serialization=False)):
        with pytest.raises(InvalidRequestError, match="no tensor that torch"):
            read_embeds(encoded(raw))
    with pytest.raises(InvalidRequestError):
        read_embeds(encoded(pickle.dumps(Evil())))


@pytest.mark.parametrize("text", ["", "!", "abc", "é", encoded(b""), encoded(b"PK\x05\x06")])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        read_embeds(text)


def test_an_archive_cannot_say_that_it_is_large() -> None:
    """A compressed entry of a gigabyte is never unpacked, and many entries are not read."""
    for name, num in (("byteorder", 1), ("data.pkl", 1), ("other", 1000)):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for number in range(num):
                own = f"archive/{name}" if num == 1 else f"archive/{name}{number}"
                archive.writestr(own, bytes(2**22 if num == 1 else 1))
            if name != "data.pkl":
                archive.writestr("archive/data.pkl", b"\x80\x02.")
        with pytest.raises(InvalidRequestError, match=r"bytes|too many entries"):
            read_embeds(encoded(file.getvalue()))


def test_damaged_files_are_refused_or_read() -> None:
    chance, whole = random.Random(1), saved(ROWS)
    for _ in range(300):
        raw = bytearray(whole)
        for _ in range(chance.randint(1, 8)):
            raw[chance.randrange(len(raw))] = chance.randrange(256)
        try:
            found = read_embeds(encoded(bytes(raw[: chance.randint(1, len(raw) + 200)])))
        except InvalidRequestError:
            continue
        assert np.isfinite(tensor_of(found).float().numpy()).all()


def rows(*numbers: float) -> EmbeddingRows:
    data = np.array(numbers, dtype="<f4").tobytes()
    return EmbeddingRows(EmbedsDtype.FLOAT32, 1, data)


EMBEDS = PromptEmbeds((PlacedRows(1, rows(1, 2)), PlacedRows(5, rows(3))))
IDS = (7, NO_TOKEN, NO_TOKEN, 8, 9, NO_TOKEN)


def test_a_prompt_crosses_the_wire_and_comes_back() -> None:
    found = embeds_from_wire(embeds_to_wire(EMBEDS))
    assert found == EMBEDS
    assert tuple(ids_from_wire(ids_to_wire(IDS, EMBEDS), EMBEDS)) == IDS
    assert max(ids_to_wire(IDS, EMBEDS)) == 2**32 - 1
    assert rows_from_wire(rows_to_wire(rows(1))) == rows(1)
    assert embeds_from_wire([]) is None
    EMBEDS.check(IDS)


def test_without_embeddings_no_id_means_a_row() -> None:
    assert ids_from_wire([2**32 - 1], None) == [2**32 - 1]


def test_parts_of_a_prompt_have_their_rows() -> None:
    assert [(at, data) for at, _, data in EMBEDS.within(2, 6)] == [
        (2, rows(2).data),
        (5, rows(3).data),
    ]
    assert EMBEDS.between(2, 6) == PromptEmbeds((PlacedRows(0, rows(2)), PlacedRows(3, rows(3))))
    assert EMBEDS.between(3, 5) is None
    assert list(EMBEDS.digests) == [1, 2, 5]
    assert known_tokens(IDS) == (7, 8, 9)
    assert PromptEmbeds.whole(rows(1, 2)).whole_ids == (NO_TOKEN, NO_TOKEN)


@pytest.mark.parametrize("ids", [IDS[:-1], (NO_TOKEN, *IDS[1:]), (7, 8, *IDS[2:])])
def test_ids_and_rows_must_agree(ids: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequestError, match="not where the prompt has no token"):
        EMBEDS.check(ids)


def test_rows_must_have_places_of_their_own() -> None:
    for parts in (
        (),
        (PlacedRows(0, rows(1, 2)), PlacedRows(1, rows(3))),
        (PlacedRows(0, rows(1)), PlacedRows(1, EmbeddingRows(EmbedsDtype.FLOAT16, 2, bytes(4)))),
    ):
        with pytest.raises(InvalidRequestError):
            PromptEmbeds(parts)
    with pytest.raises(InvalidRequestError, match="no rows of 3 numbers"):
        EmbeddingRows(EmbedsDtype.FLOAT16, 3, bytes(8))
    message = rows_to_wire(rows(1))
    message.dtype = "int8"
    with pytest.raises(InvalidRequestError, match="dtype"):
        rows_from_wire(message)
