"""Makes Triton's interpreter faster by caching what it derives again at each operation.

On tiles as small as those of tests, the interpreter's own Python takes nearly all of the time, not
numpy. No result changes: types, shapes and the language's functions are the same.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any


def keep_what_repeats(interpreter: Any) -> None:
    """Patch the interpreter's module, and the language that it runs, for this process."""
    from triton.language import core  # noqa: PLC0415 only where kernels are interpreted

    _patch_the_language_once(interpreter)
    _keep_numpy_types(interpreter)
    _keep_block_types(core)
    _keep_shapes(core)
    _leave_equal_operands(type(interpreter.interpreter_semantic))
    # Checks of overflow end in assertions, which the interpreter skips without `debug`.
    builder = interpreter.interpreter_builder
    if not builder.options.debug:
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def _patch_the_language_once(interpreter: Any) -> None:
    """Patch the language once per launch, and search it once per process.

    Triton searches and patches all of its language again at every call of a device function, even
    inside a launch that has already patched it.
    """
    import triton.language as tl  # noqa: PLC0415
    from triton.language import core, math  # noqa: PLC0415

    patch_all, patch_place = interpreter._patch_lang, interpreter._patch_builtin
    places = (tl, core, core.tensor, math, core.tensor_descriptor_base)
    members = {
        place: [
            (name, _interpreting(member, interpreter.interpreter_semantic))
            for name, member in inspect.getmembers(place)
            if core.is_builtin(member)
        ]
        for place in places
    }
    in_force: set[Any] = set()

    def patch_builtins(place: Any, builder: Any, scope: Any) -> None:
        if place not in members:
            patch_place(place, builder, scope)
            return
        for name, interpreting in members[place]:
            if core.is_builtin(getattr(place, name)):  # a patched one is not
                scope.set_attr(place, name, interpreting)

    def patch_lang(function: Any) -> Any:
        if len(in_force) == 2:
            return interpreter._LangPatchScope()
        found = function.__globals__.values()
        new = {place for place in (tl, core) if any(value is place for value in found)} - in_force
        if not new and in_force:
            return interpreter._LangPatchScope()
        scope = patch_all(function)
        restore = scope.restore

        def restore_all() -> None:
            restore()
            in_force.difference_update(new)

        in_force.update(new)
        scope.restore = restore_all
        return scope

    interpreter._patch_builtin, interpreter._patch_lang = patch_builtins, patch_lang


def _interpreting(member: Any, semantic: Any) -> Any:
    """Return a builtin's function with its semantic, so that it does not check for one."""
    function = inspect.unwrap(member)

    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = semantic
        return function(*args, **kwargs)

    return call


def _keep_numpy_types(interpreter: Any) -> None:
    """Cache numpy's types by the names of Triton's: Triton builds a table for every look-up."""
    plain = interpreter._get_np_dtype
    known: dict[str, Any] = {}

    def get_np_dtype(kind: Any) -> Any:
        found = known.get(kind.name)
        if found is None:
            found = known[kind.name] = plain(kind)
        return found

    interpreter._get_np_dtype = get_np_dtype


def _keep_block_types(core: Any) -> None:
    """Share attributes, which never change, among all types of the same elements and shape."""
    plain = core.block_type.__init__
    known: dict[Any, dict[str, Any]] = {}

    def init(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = getattr(shape, "values", shape)
        sizes = tuple([size.value if type(size) is core.constexpr else size for size in sizes])
        key = (element_ty.name, getattr(element_ty, "address_space", None), sizes)
        found = known.get(key)
        if found is not None:
            self.__dict__ = found
            return
        plain(self, element_ty, shape)
        self.tensor_shape = core.tuple([core.constexpr(size) for size in self.shape])
        self.tensor_numel = core.constexpr(self.numel)
        if all(type(size) is int for size in sizes):  # 4.0 is equal to 4, but refused
            known[key] = self.__dict__

    core.block_type.__init__ = init


def _keep_shapes(core: Any) -> None:
    """Keep a tensor's shape, a tuple of constants, with its type."""
    no_shape, one = core.tuple([]), core.constexpr(1)

    def init(self: Any, handle: Any, type: Any) -> None:
        self.handle = handle
        self.type = type
        self.dtype = type.scalar
        if type.is_block():
            self.shape, self.numel = type.tensor_shape, type.tensor_numel
        else:
            self.shape, self.numel = no_shape, one

    core.tensor.__init__ = init


def _leave_equal_operands(semantic: Any) -> None:
    """Skip casts and broadcasts of two operands of one type or one shape, as most are.

    A number beside a tile is all that is broadcast otherwise, nearly always.
    """
    plain_check, plain_broadcast = (
        semantic.binary_op_type_checking_impl,
        semantic.broadcast_impl_value,
    )

    def check(
        self: Any,
        lhs: Any,
        rhs: Any,
        allow_lhs_ptr: bool = False,
        allow_rhs_ptr: bool = False,
        arithmetic_check: bool = True,
        div_or_mod: bool = False,
    ) -> Any:
        left: Any = getattr(lhs, "dtype", None)
        is_same = left is not None and left is getattr(rhs, "dtype", None)
        if is_same and not (left.is_ptr() or div_or_mod):
            return self.broadcast_impl_value(lhs, rhs)
        options = (allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod)
        return plain_check(self, lhs, rhs, *options)

    def splat(self: Any, value: Any, shape: Any) -> Any:
        kind = shape.with_element_ty(value.type)
        return self.tensor(self.builder.create_splat(kind, value.handle), kind)

    def broadcast(self: Any, lhs: Any, rhs: Any) -> Any:
        left, right = lhs.type, rhs.type
        if not right.is_block():
            return lhs, splat(self, rhs, left) if left.is_block() else rhs
        if not left.is_block():
            return splat(self, lhs, right), rhs
        if left.shape.values == right.shape.values:
            return lhs, rhs
        return plain_broadcast(self, lhs, rhs)

    semantic.binary_op_type_checking_impl, semantic.broadcast_impl_value = check, broadcast
