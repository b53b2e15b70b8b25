"""The event decoder gives the same events wherever the bytes are cut."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.load.asking.event_stream import EventDecoder

payloads = st.lists(
    st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), min_size=1)
    .filter(lambda text: not text.startswith(" "))
    .map(str.encode),
    max_size=8,
)


@given(events=payloads, cuts=st.lists(st.integers(0, 500)), end=st.sampled_from([b"\n", b"\r\n"]))
def test_cuts_do_not_matter(events: list[bytes], cuts: list[int], end: bytes) -> None:
    stream = b"".join(b": ping" + end * 2 + b"data: " + event + end * 2 for event in events)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    decoder = EventDecoder()
    seen = [event for start, stop in pairwise(edges) for event in decoder.feed(stream[start:stop])]
    assert seen == events


def test_data_over_several_lines_is_one_event() -> None:
    assert EventDecoder().feed(b"id: 1\ndata: a\ndata:b\n\n") == [b"a\nb"]


def test_an_event_waits_for_its_end() -> None:
    decoder = EventDecoder()
    assert decoder.feed(b"data: a\n") == []
    assert decoder.feed(b"\n") == [b"a"]
