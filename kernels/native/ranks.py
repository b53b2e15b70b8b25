"""The numbers of ranks/members.h and ranks/collective.h, by their names."""

from __future__ import annotations

from enum import IntEnum


class Summand(IntEnum):
    """`baton::Summand`: what is added up."""

    FLOAT32 = 0
    BFLOAT16 = 1
    FLOAT16 = 2


class Act(IntEnum):
    """`baton::Act`: what a rank was doing."""

    NONE = 0
    ALL_REDUCE = 1
    ALL_GATHER = 2
    BROADCAST = 3
    BARRIER = 4
    SEND = 5
    DRAIN = 6
    RECEIVE = 7


class Reason(IntEnum):
    """`baton::Reason`: why a group is broken."""

    NONE = 0
    LATE = 1
    DEAD = 2
    LEFT = 3
    OTHER = 4
    ABSENT = 5


class Join(IntEnum):
    """`baton::Join`: whether a mapping was joined."""

    DONE = 0
    TAKEN = 1
    SIZE = 2
    SYSTEM = 3


class Waited(IntEnum):
    """`baton::Waited`: how waiting ended."""

    REACHED = 0
    BROKEN = 1
    NOTHING = 2
