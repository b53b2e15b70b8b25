"""The pickle of a PyTorch file, read as data.

A pickle is a program that may call anything. Here no function of it is called, and no object of it
is made: of its instructions those for containers, texts and numbers are followed, and a tensor is a
record. Every other instruction, and every function but those that PyTorch names for tensors, is
refused.
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: By storage, or dtype, of PyTorch: the dtype as safetensors spells it, and bytes of a number.
DTYPES = {
    "DoubleStorage": ("F64", 8),
    "FloatStorage": ("F32", 4),
    "HalfStorage": ("F16", 2),
    "BFloat16Storage": ("BF16", 2),
    "LongStorage": ("I64", 8),
    "IntStorage": ("I32", 4),
    "ShortStorage": ("I16", 2),
    "CharStorage": ("I8", 1),
    "ByteStorage": ("U8", 1),
    "BoolStorage": ("BOOL", 1),
    "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e5m2": ("F8_E5M2", 1),
    "float8_e8m0fnu": ("F8_E8M0", 1),
    "uint16": ("U16", 2),
    "uint32": ("U32", 4),
    "uint64": ("U64", 8),
}
_MARK = object()
_TEXTS = {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
_NUMBERS = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"}
_NOTHING = {"PROTO", "FRAME"}
_CONSTANTS: Mapping[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class NotTensorsError(ValueError):
    """A pickle is damaged, or has something else than tensors by name. Says what."""


@dataclass(frozen=True, slots=True)
class Function:
    """The name of a function or a class."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True, slots=True)
class Storage:
    """Numbers in an entry of the file."""

    key: str
    kind: str
    #: Bytes, if the kind has no dtype.
    size: int


@dataclass(frozen=True, slots=True)
class Record:
    """A tensor."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    #: Of `DTYPES`; that of the storage, if it has one.
    kind: str


def read_program(raw: bytes) -> Any:
    """Return what a pickle holds: records of tensors, and containers, texts and numbers.

    Raises:
        NotTensorsError: it has, or does, anything else.
    """
    machine = _Machine()
    try:
        for instruction, argument, _ in pickletools.genops(raw):
            machine.follow(instruction.name, argument)
        return machine.result()
    except NotTensorsError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise NotTensorsError(f"its pickle is damaged: {error}") from error


def named_records(content: Any) -> dict[str, Record]:
    """Return the tensors that a pickle has by name.

    Raises:
        NotTensorsError: it holds anything else.
    """
    if not isinstance(content, dict):
        raise NotTensorsError(f"it holds a {kind_of(content)}, not tensors by name")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Record):
            raise NotTensorsError(f"it holds a {kind_of(value)} as {name!r}, not a tensor")
    return content


class _Machine:
    """The stack and the memory of a pickle."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memory: dict[int, Any] = {}

    def result(self) -> Any:
        (content,) = self._stack
        return content

    def follow(self, name: str, argument: Any) -> None:
        """Follow an instruction, by its name in `pickletools`."""
        if name in _TEXTS or name in _NUMBERS:
            self._stack.append(argument)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
        elif name in _TUPLES:
            self._stack.append(tuple(self._pop_many(_TUPLES[name])))
        elif name in _STEPS:
            _STEPS[name](self, argument)
        elif name not in _NOTHING:
            raise NotTensorsError(f"its pickle has the instruction {name}, which no tensor needs")

    def empty_dict(self, _: Any) -> None:
        self._stack.append({})

    def empty_list(self, _: Any) -> None:
        self._stack.append([])

    def mark(self, _: Any) -> None:
        self._stack.append(_MARK)

    def tuple(self, _: Any) -> None:
        self._stack.append(tuple(self._pop_to_mark()))

    def put(self, place: int) -> None:
        self._memory[place] = self._stack[-1]

    def memoize(self, _: Any) -> None:
        self._memory[len(self._memory)] = self._stack[-1]

    def get(self, place: int) -> None:
        self._stack.append(self._memory[place])

    def function(self, names: str) -> None:
        self._stack.append(Function(*names.split(" ", 1)))

    def function_of_stack(self, _: Any) -> None:
        module, name = self._pop_many(2)
        self._stack.append(Function(str(module), str(name)))

    def storage(self, _: Any) -> None:
        self._stack.append(_storage(self._stack.pop()))

    def call(self, _: Any) -> None:
        function, arguments = self._pop_many(2)
        make = _CALLS.get(str(function)) if isinstance(function, Function) else None
        if make is None:
            raise NotTensorsError(f"its pickle calls {function}, which makes no tensor")
        self._stack.append(make(*arguments))

    def build(self, _: Any) -> None:
        """Attributes of the dictionary, of which a state has the versions of modules."""
        self._stack.pop()
        if not isinstance(self._stack[-1], dict):
            raise NotTensorsError("its pickle sets attributes of what is no dictionary")

    def set_item(self, _: Any) -> None:
        self._set(self._pop_many(2))

    def set_items(self, _: Any) -> None:
        self._set(self._pop_to_mark())

    def append(self, _: Any) -> None:
        value = self._stack.pop()
        self._list().append(value)

    def appends(self, _: Any) -> None:
        values = self._pop_to_mark()
        self._list().extend(values)

    def stop(self, _: Any) -> None:
        """The end."""

    def _set(self, pairs: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict):
            raise NotTensorsError("its pickle sets items of what is no dictionary")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            if not isinstance(key, str | int):
                raise NotTensorsError(f"its pickle has a {kind_of(key)} for a key")
            target[key] = value

    def _list(self) -> list[Any]:
        target = self._stack[-1]
        if not isinstance(target, list):
            raise NotTensorsError("its pickle appends to what is no list")
        return target

    def _pop_many(self, num: int) -> list[Any]:
        if num > len(self._stack):
            raise IndexError("the stack is empty")
        values = self._stack[len(self._stack) - num :]
        del self._stack[len(self._stack) - num :]
        return values

    def _pop_to_mark(self) -> list[Any]:
        place = len(self._stack) - 1
        while self._stack[place] is not _MARK:
            place -= 1
        values = self._stack[place + 1 :]
        del self._stack[place:]
        return values


_STEPS: Mapping[str, Callable[[_Machine, Any], None]] = {
    "EMPTY_DICT": _Machine.empty_dict,
    "EMPTY_LIST": _Machine.empty_list,
    "MARK": _Machine.mark,
    "TUPLE": _Machine.tuple,
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "MEMOIZE": _Machine.memoize,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
    "GLOBAL": _Machine.function,
    "STACK_GLOBAL": _Machine.function_of_stack,
    "BINPERSID": _Machine.storage,
    "REDUCE": _Machine.call,
    "BUILD": _Machine.build,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.appends,
    "STOP": _Machine.stop,
}


def _storage(found: Any) -> Storage:
    what, kind, key, _, size = found
    if what != "storage" or not isinstance(kind, Function) or not isinstance(key, str):
        raise NotTensorsError("its pickle refers to something else than numbers of a tensor")
    return Storage(key, kind.name, _count(size))


def _tensor(storage: Storage, offset: Any, shape: Any, strides: Any, *_: Any) -> Record:
    sizes, steps = (tuple(_count(each) for each in own) for own in (shape, strides))
    return Record(storage, _count(offset), sizes, steps, storage.kind)


def _typed_tensor(
    storage: Storage, offset: Any, shape: Any, strides: Any, _: Any, __: Any, dtype: Any, *___: Any
) -> Record:
    return replace(_tensor(storage, offset, shape, strides), kind=dtype.name)


def _parameter(data: Record, *_: Any) -> Record:
    return data


#: What PyTorch's pickles call.
_CALLS: Mapping[str, Callable[..., Any]] = {
    "collections.OrderedDict": dict,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _typed_tensor,
    "torch._utils._rebuild_parameter": _parameter,
}


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise NotTensorsError(f"its pickle has {value!r} for a size")
    return value


def kind_of(value: Any) -> str:
    """Return a name for what a pickle holds, for errors."""
    return str(value) if isinstance(value, Function) else type(value).__name__
