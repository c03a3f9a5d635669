"""Exact 64-bit counters inside jit, where integers have 32 bits."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Counter(NamedTuple):
    """high · 2³² + low."""

    high: jax.Array  # u32[]
    low: jax.Array  # u32[]


def init(value: int = 0) -> Counter:
    """A counter at `value`."""
    return Counter(jnp.uint32(value >> 32), jnp.uint32(value & 0xFFFFFFFF))


def add(counter: Counter, amount: int | jax.Array) -> Counter:
    """`counter + amount`, where an amount that is an array is below 2³²."""
    if isinstance(amount, int) and amount >> 32:
        counter, amount = counter._replace(high=counter.high + jnp.uint32(amount >> 32)), amount & 0xFFFFFFFF
    amount = jnp.asarray(amount, jnp.uint32)
    low = counter.low + amount
    return Counter(counter.high + (low < amount).astype(jnp.uint32), low)


def subtract(counter: Counter, other: Counter) -> Counter:
    """`counter - other`, or 0 where that would be negative."""
    borrow = (counter.low < other.low).astype(jnp.uint32)
    negative = (counter.high < other.high) | ((counter.high == other.high) & (borrow > 0))
    kept = (~negative).astype(jnp.uint32)
    return Counter(kept * (counter.high - other.high - borrow), kept * (counter.low - other.low))


def reached(counter: Counter, count: int) -> jax.Array:
    """Whether the count has come to `count`, bool[]."""
    goal = init(count)
    return (counter.high > goal.high) | ((counter.high == goal.high) & (counter.low >= goal.low))


def approximate(counter: Counter) -> jax.Array:
    """The count as f32[]: right to 1 part in 2²⁴, for shares and weights only."""
    return counter.high.astype(jnp.float32) * 2.0**32 + counter.low.astype(jnp.float32)


def exact(counter: Counter) -> int:
    """The count as a Python integer, on the host."""
    return (int(np.asarray(counter.high)) << 32) + int(np.asarray(counter.low))
