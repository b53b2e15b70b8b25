"""Numbers by which the compiled library knows kinds of things."""

from __future__ import annotations

from enum import IntEnum


class Kind(IntEnum):
    """`baton::Kind`: the type of stored numbers."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2
    #: FLOAT32 for products of many rows: with a matrix unit it takes 6 bytes a number, in the order
    #: of that unit; without one it is FLOAT32.
    FLOAT_PARTS = 8


class CodeKind(IntEnum):
    """`baton::Kind`: the type of stored codes, in groups unless it is INT8."""

    INT8 = 2
    FOURS = 3
    EIGHTS = 4
    FLOAT8S = 5
    LOOKED = 6


class BlockType(IntEnum):
    """`baton::BlockType`, by llama.cpp's names."""

    Q4_0 = 0
    Q4_1 = 1
    Q5_0 = 2
    Q5_1 = 3
    Q8_0 = 4
    Q2_K = 5
    Q3_K = 6
    Q4_K = 7
    Q5_K = 8
    Q6_K = 9
    IQ4_NL = 10
    IQ4_XS = 11
    MXFP4 = 12


class KvFormat(IntEnum):
    """`baton::KvFormat`."""

    ELEMENTS = 0
    INT8 = 1
    FLOAT8 = 2


class Grid(IntEnum):
    """`baton::Grid`."""

    NONE = 0
    INT = 1
    E2M1 = 2
    E2M3 = 3
    E3M2 = 4
    E4M3 = 5
    E5M2 = 6


class ScaleRule(IntEnum):
    """`baton::ScaleRule`."""

    FLOAT = 0
    POWER = 1
    POWER_ABOVE = 2
    E4M3 = 3
    E4M3_TIMES = 4


class Op(IntEnum):
    """`baton::Op`, where each operation is described."""

    CAPTURE = 0
    NORM = 1
    PROJECT = 2
    ROTATE = 3
    ATTEND = 4
    NARROW = 5
    OUTPUT = 6
    GATE = 7
    DOWN = 8
    ADD = 9
    ROUTE = 10
    EXPERTS = 11
    LATENT_ROW = 12
    LATENT_DOWN = 13
    LATENT_QUERY = 14
    LATENT_VALUE = 15
    RECUR = 16
    INPUTS = 17
    WEIGH = 18
    SCALE = 19
    KEEP = 20
    MERGE = 21
    SUM = 22
    SQUARES = 23


class Outcome(IntEnum):
    """`outcome` of api.cpp: what a call of a decoder returns."""

    DONE = 0
    NO_MEMORY = 1
    GROUP_BROKEN = 2
    UNFINISHED = 3


class HeadNorm(IntEnum):
    """`baton::HeadNorm`."""

    HEAD = 0
    EACH_HEAD = 1
    WHOLE = 2


class Activation(IntEnum):
    """`baton::Activation`."""

    SILU = 0
    GELU = 1
    GELU_TANH = 2
    RELU = 3
    RELU2 = 4
    CLAMPED = 5


class RecurrentKind(IntEnum):
    """`baton::RecurrentKind`."""

    SHORT_CONV = 0
    DELTA = 1
    MAMBA = 2
