"""Counters stay exact where floats and 32-bit integers do not."""

import jax
import jax.numpy as jnp
import pytest

from purejaxrl_scale import counters

_add = jax.jit(counters.add)
_subtract = jax.jit(counters.subtract)


@pytest.mark.parametrize(
    ("start", "amount"),
    [
        (2**31 - 1, 2**20 * 16),
        (2**24, 1),
        (2**32 - 1, 1),
        (1_048_576 * 2_047, 1_048_576),
        (10**12, 2**31),
        (376 * 10**9, 2**32 - 1),
        (2**53, 1),
        (2**63 - 1, 1),
    ],
)
def test_addition_is_exact(start, amount):
    assert counters.exact(_add(counters.init(start), jnp.uint32(amount))) == start + amount


@pytest.mark.parametrize(
    ("left", "right"),
    [(2**32, 1), (10**12, 2**31), (10**12, 10**12), (5, 6), (2**32, 2**32 + 1), (2**40 + 3, 2**33 + 7)],
)
def test_subtraction_is_exact_and_ends_at_zero(left, right):
    assert counters.exact(_subtract(counters.init(left), counters.init(right))) == max(0, left - right)


@pytest.mark.parametrize("amount", [2**22 * 512, 2**33 + 5, 2**32])
def test_amounts_known_beforehand_may_be_large(amount):
    assert counters.exact(counters.add(counters.init(2**32 - 3), amount)) == 2**32 - 3 + amount


def test_the_step_count_that_wraps_in_int32():
    assert counters.exact(_add(counters.init(2**31 - 1), 2**20 * 16)) == 2_164_260_863


def test_approximation_is_within_float32():
    assert abs(float(counters.approximate(counters.init(10**12))) / 10**12 - 1) < 2**-23
