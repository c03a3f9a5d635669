"""How much memory a function needs beside its arguments, read off its jaxpr without compiling it.

A model of XLA's planner: elementwise work is fused into whatever reads it and has a buffer only where a matrix product
or a loop needs one; a result takes the place of an operand that is read for the last time; loops update in place what
they carry; of what is ready, whatever became so first comes first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

# What works on whole buffers; anything else is fused, and so are the operands of reductions.
_IN_PLACE = {"dynamic_update_slice", "pure_callback", "scatter", "scatter-add", "scatter_add"}
_WHOLE = {"concatenate", "conv_general_dilated", "cumsum", "dot_general", "random_bits", "sort", "top_k"} | _IN_PLACE
# Another look at the same bytes.
_VIEWS = {"copy", "expand_dims", "optimization_barrier", "reshape", "squeeze"}


def temporaries(function: Callable, *arguments: Any, overwrites: bool = False) -> tuple[int, Any]:
    """Bytes that `function` needs at its peak beside its arguments (arrays or their shapes), results included.

    With `overwrites` results may take the place of arguments. Also gives the shapes of the results.
    """
    jaxpr, results = jax.make_jaxpr(function, return_shape=True)(*arguments)
    return _peak(jaxpr.jaxpr, 0 if overwrites else None), results


def bytes_of(tree: Any) -> int:
    """Bytes of the leaves of a tree of arrays or shapes."""
    return sum(_bytes(leaf) for leaf in jax.tree.leaves(tree))


def _bytes(leaf: Any) -> int:
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
    return int(np.prod(leaf.shape, dtype=np.int64)) * leaf.dtype.itemsize


@dataclass(eq=False)
class _Value:
    """What a variable stands for: a buffer, or work that is fused into its readers."""

    bytes: int
    operands: Sequence[_Value] = ()
    is_buffer: bool = False

    def buffers(self) -> set[_Value]:
        """The buffers that reading it touches."""
        found: set[_Value] = set()
        seen: set[_Value] = set()
        left: list[_Value] = [self]
        while left:
            value = left.pop()
            if value.is_buffer:
                found.add(value)
            elif value not in seen:
                seen.add(value)
                left.extend(value.operands)
        return found


@dataclass(eq=False)
class _Kernel:
    """One kernel or loop."""

    operands: Sequence[_Value]
    writes: Sequence[_Value]
    inside: int = 0  # bytes that it needs only while it runs
    in_place: bool = True  # results may take the place of operands that are read for the last time
    reads: set[_Value] = field(default_factory=set)


def _peak(jaxpr: Jaxpr, fixed: int | None = None) -> int:
    """Bytes at the peak beside the arguments, of which all but the first `fixed` may be overwritten."""
    kernels: list[_Kernel] = []
    given = [_Value(_bytes(variable.aval), is_buffer=True) for variable in jaxpr.invars]
    constants = [_Value(0, is_buffer=True) for _ in jaxpr.constvars]
    results = _inline(jaxpr, [*constants, *given], kernels)
    for value in results:
        _give_buffer(value, kernels)
    overwritten = given if fixed is None else given[fixed:]
    return _simulate(_schedule(kernels), set(results), overwritten if fixed is not None else [])


def _simulate(order: list[_Kernel], kept: set[_Value], overwritten: Sequence[_Value]) -> int:
    last_read = {buffer: place for place, kernel in enumerate(order) for buffer in kernel.reads}
    mortal = {one for kernel in order for one in kernel.writes}.union(overwritten) - kept
    begin = live = highest = sum(one.bytes for one in overwritten)
    for place, kernel in enumerate(order):
        dying = [one for one in kernel.reads if one in mortal and last_read[one] == place]
        written = sum(one.bytes for one in kernel.writes)
        reused = _reused(kernel.writes, dying) if kernel.in_place else 0
        highest = max(highest, live + written - reused + kernel.inside)
        live += written - sum(one.bytes for one in dying)
        live -= sum(one.bytes for one in kernel.writes if one in mortal and one not in last_read)
    return highest - begin


def _reused(writes: Sequence[_Value], dying: Sequence[_Value]) -> int:
    """Bytes of the writes that take the place of a dying operand of the same size."""
    free, total = [one.bytes for one in dying], 0
    for one in writes:
        if one.bytes in free:
            free.remove(one.bytes)
            total += one.bytes
    return total


def _schedule(kernels: Sequence[_Kernel]) -> list[_Kernel]:
    """The kernels in the order in which what they read becomes ready."""
    readers: dict[_Value, list[_Kernel]] = {}
    writer = {one: kernel for kernel in kernels for one in kernel.writes}
    waiting = {}
    for kernel in kernels:
        kernel.reads = set().union(*(one.buffers() for one in kernel.operands))
        sources = {writer[one] for one in kernel.reads if one in writer}
        waiting[kernel] = len(sources)
        for source in sources:
            readers.setdefault(source.writes[0], []).append(kernel)
    ready = deque(kernel for kernel in kernels if not waiting[kernel])
    order = []
    while ready:
        kernel = ready.popleft()
        order.append(kernel)
        for reader in readers.get(kernel.writes[0], ()) if kernel.writes else ():
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    return order


def _inline(jaxpr: Jaxpr, arguments: Sequence[_Value], kernels: list[_Kernel]) -> list[_Value]:
    values: dict[Any, _Value] = dict(zip((*jaxpr.constvars, *jaxpr.invars), arguments, strict=True))

    def value(variable: Any) -> _Value:
        return _Value(0) if isinstance(variable, Literal) else values[variable]

    for equation in jaxpr.eqns:
        results = _equation(equation, [value(one) for one in equation.invars], kernels)
        values.update(zip(equation.outvars, results, strict=True))
    return [value(one) for one in jaxpr.outvars]


def _equation(equation: Any, operands: list[_Value], kernels: list[_Kernel]) -> list[_Value]:
    name, parameters = equation.primitive.name, equation.params
    sizes = [_bytes(variable.aval) for variable in equation.outvars]
    if name == "scan":
        return _kernel(operands, sizes, kernels, _peak(parameters["jaxpr"].jaxpr, parameters["num_consts"]))
    if name == "while":
        constants = parameters["cond_nconsts"]
        inside = _peak(parameters["body_jaxpr"].jaxpr, parameters["body_nconsts"])
        return _kernel(operands[constants:], sizes, kernels, inside)
    if name == "cond":
        inside = max(_peak(branch.jaxpr) for branch in parameters["branches"])
        return _kernel(operands, sizes, kernels, max(0, inside - sum(sizes)))
    if inner := _called(parameters):
        return _inline(inner, [*(_Value(0, is_buffer=True) for _ in inner.constvars), *operands], kernels)
    if name in _VIEWS:
        return operands
    if name in _WHOLE:
        return _kernel(operands, sizes, kernels, in_place=name in _IN_PLACE)
    if name.startswith(("reduce_", "arg")):
        return [_written(_Value(size, operands), kernels) for size in sizes]
    return [_Value(size, operands) for size in sizes]


def _kernel(
    operands: list[_Value], sizes: list[int], kernels: list[_Kernel], inside: int = 0, in_place: bool = True
) -> list[_Value]:
    for one in operands:
        _give_buffer(one, kernels)
    writes = [_Value(size, is_buffer=True) for size in sizes]
    kernels.append(_Kernel(operands, writes, inside, in_place))
    return writes


def _give_buffer(value: _Value, kernels: list[_Kernel]) -> None:
    if not value.is_buffer:
        _written(value, kernels)


def _written(value: _Value, kernels: list[_Kernel]) -> _Value:
    """The value, written by a fused kernel of its own."""
    kernels.append(_Kernel(value.operands, [value]))
    value.is_buffer = True
    return value


def _called(parameters: dict[str, Any]) -> Jaxpr | None:
    """The jaxpr of a call."""
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr", "call"):
        inner = parameters.get(name)
        if isinstance(inner, ClosedJaxpr):
            return inner.jaxpr
        if isinstance(inner, Jaxpr):
            return inner
    return None
