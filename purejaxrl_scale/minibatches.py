"""Minibatches without a permutation array: an index shuffle that is evaluated only where it is read."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Integer, UInt32

ROUNDS = 6


def _mix(bits: jax.Array) -> jax.Array:
    """An avalanche of 32 bits: each input bit flips each output bit about half the time."""
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> 15)) * jnp.uint32(0x846CA68B)
    return bits ^ (bits >> 16)


def _rotate(digit, shift, base):
    """`(digit + shift) mod base` for digit < base, where shift is the upper 16 of 32 random bits scaled to base."""
    total = digit + (((shift >> 16) * base) >> 16)
    return jnp.where(total >= base, total - base, total)


def shuffled_index(
    key: jax.Array, position: Integer[Array, "*shape"], size: int | Integer[Array, ""]
) -> UInt32[Array, "*shape"]:
    """Where `position` goes under a random permutation of [0, size).

    A Feistel network on pairs (left, right) of [0, rows) x [0, columns), the smallest near-square that holds
    `size`: each of its rounds adds to one half a hash of the other, modulo that half's own range, and so can be
    undone. Results outside [0, size), fewer than one in √size, walk on along their cycle until they fall inside,
    which keeps the whole a bijection.

    `size` may be traced and at most 2³¹; positions must lie in [0, size). Distinct positions give distinct indices:
    a minibatch is any slice of positions.

    Source: Black and Rogaway 2002, Ciphers with Arbitrary Finite Domains, section 5 (generalised Feistel) and
    section 4 (cycle walking).
    """
    size = jnp.asarray(size, jnp.uint32)
    # Any near-square will do, so the rounding of a float square root is harmless: columns make up for rows.
    rows = jnp.maximum(jnp.sqrt(size.astype(jnp.float32)).astype(jnp.uint32), 1)
    columns = (size + rows - 1) // rows
    round_keys = jax.random.bits(key, (ROUNDS,), jnp.uint32)

    def permute(index):
        left, right = index // columns, index % columns
        for number in range(0, ROUNDS, 2):
            left = _rotate(left, _mix(right ^ round_keys[number]), rows)
            right = _rotate(right, _mix(left ^ round_keys[number + 1]), columns)
        return left * columns + right

    def walk(index):
        return jnp.where(index < size, index, permute(index))

    return jax.lax.while_loop(lambda index: jnp.any(index >= size), walk, permute(position.astype(jnp.uint32)))
