"""When pieces are packed: on a simulated link, whose wire, processors and content are known."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from shared.connector.packing.rule import LEAST_BYTES, PackingMode, PackingRule

MIB = 1 << 20


@dataclass
class Link:
    """Sends one piece after the other. Rates: bytes per second."""

    wire: float
    pack: float = 12e9
    unpack: float = 12e9
    share: float = 0.76
    latency_s: float = 2e-4
    now_s: float = 100.0

    def send(self, rule: PackingRule, num_pieces: int, num_bytes: int = MIB) -> list[bool]:
        """Return which pieces were packed."""
        chosen = []
        for number in range(num_pieces):
            name, began_s = number.to_bytes(16, "big"), self.now_s
            rule.answered(self.latency_s)
            wanted = rule.wants(num_bytes)
            packed = wanted
            if wanted:
                packed = rule.packed(num_bytes, int(self.share * num_bytes))
                self.now_s += num_bytes / self.pack
            share = self.share if packed else 1.0
            rule.sent(name, num_bytes, began_s, is_packed=packed)
            self.now_s += self.latency_s + share * num_bytes / self.wire
            self.now_s += num_bytes / self.unpack if packed else 0.0
            rule.acknowledged(name, num_bytes, self.now_s)
            chosen.append(wanted)
            # Idle for a while.
            self.now_s += 0.01
        return chosen


@pytest.mark.parametrize(
    ("link", "pays"),
    [
        (Link(wire=0.1e9), True),
        (Link(wire=1e9), True),
        (Link(wire=1.2e9), True),
        (Link(wire=1e9, latency_s=0.01), True),
        (Link(wire=3e9), False),
        (Link(wire=12e9), False),
        # The wire is fast, and far: a packed piece arrives no earlier.
        (Link(wire=12e9, latency_s=0.01), False),
        (Link(wire=1e9, pack=2e9, unpack=4e9), False),
        (Link(wire=1e9, share=0.97), False),
        # What is predicted does not come true: a few trials.
        (Link(wire=1e9, unpack=0.5e9), False),
    ],
)
def test_pieces_are_packed_where_that_is_faster(link: Link, pays: bool) -> None:
    rule = PackingRule(PackingMode.AUTO)
    assert not any(link.send(rule, 1))
    chosen = link.send(rule, 1000)[100:]
    assert sum(chosen) / len(chosen) > 0.9 if pays else sum(chosen) / len(chosen) < 0.05


def test_a_link_that_gets_faster_or_slower_is_noticed() -> None:
    rule, link = PackingRule(PackingMode.AUTO), Link(wire=0.5e9)
    assert sum(link.send(rule, 100)) > 80
    link.wire = 20e9
    # One plain piece in sixteen tells it, once older ones have faded.
    chosen = link.send(rule, 3000)
    assert sum(chosen[2000:]) < 100
    link.wire = 0.5e9
    assert sum(link.send(rule, 1000)[500:]) > 400


def test_small_pieces_are_not_packed_unless_all_are() -> None:
    link = Link(wire=1e8)
    rule = PackingRule(PackingMode.AUTO)
    link.send(rule, 100)
    assert not any(link.send(rule, 50, LEAST_BYTES - 1))
    assert all(link.send(PackingRule(PackingMode.ON), 50, 1024))
    assert not any(link.send(PackingRule(PackingMode.OFF), 50))


def test_what_was_never_sent_is_no_answer() -> None:
    rule = PackingRule(PackingMode.AUTO)
    rule.acknowledged(bytes(16), MIB, 1.0)
    rule.sent(bytes(16), MIB, 2.0, is_packed=False)
    rule.acknowledged(bytes(16), MIB - 1, 3.0)
    assert not rule.wants(MIB)
