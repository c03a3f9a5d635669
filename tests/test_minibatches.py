"""The shuffle is a permutation for every size, and a fair one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from purejaxrl_scale.minibatches import shuffled_index

_traced = jax.jit(shuffled_index)


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 5000), seed=st.integers(0, 2**31 - 1))
def test_bijection_for_any_size(size, seed):
    # The size is traced and the positions padded, so that every example shares one compiled program.
    position = jnp.minimum(jnp.arange(5000), size - 1)
    index = np.asarray(_traced(jax.random.key(seed), position, size))[:size]
    np.testing.assert_array_equal(np.sort(index), np.arange(size))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 4096, 65_537, 1_000_003])
def test_static_and_traced_sizes_agree(size, key):
    position = jnp.arange(size)
    static = shuffled_index(key, position, size)
    np.testing.assert_array_equal(static, _traced(key, position, jnp.uint32(size)))
    np.testing.assert_array_equal(np.sort(static), np.arange(size))


def test_large_sizes_stay_in_range_and_distinct(key):
    size = 2**31
    index = np.asarray(_traced(key, jnp.arange(2**31 - 100_000, 2**31, dtype=jnp.uint32), jnp.uint32(size)))
    assert index.max() < size
    assert len(np.unique(index)) == 100_000


@pytest.mark.parametrize("size", [6, 48, 64])
def test_each_position_lands_everywhere_equally_often(size):
    keys = jax.random.split(jax.random.key(1), 6000)
    index = np.asarray(jax.vmap(lambda key: shuffled_index(key, jnp.arange(size), size))(keys))
    for position in range(size):
        counts = np.bincount(index[:, position], minlength=size)
        # Each of the `size` tests fails a fair shuffle once in a million.
        assert stats.chisquare(counts).pvalue > 1e-6, position


def test_neighbours_part(key):
    """Neighbouring positions land apart as in a uniform permutation: mean distance is (size + 1) / 3."""
    size = 10_000
    keys = jax.random.split(key, 50)
    index = np.asarray(jax.vmap(lambda key: shuffled_index(key, jnp.arange(size), size))(keys)).astype(np.int64)
    distance = np.abs(np.diff(index, axis=1)).mean()
    assert abs(distance - (size + 1) / 3) < 0.01 * size


def test_pairs_are_uniform():
    """All 20 ordered pairs of two positions of 5 occur equally often."""
    keys = jax.random.split(jax.random.key(2), 20_000)
    index = np.asarray(jax.vmap(lambda key: shuffled_index(key, jnp.arange(5), 5))(keys)).astype(np.int64)
    pair = index[:, 0] * 5 + index[:, 3]
    counts = np.bincount(pair, minlength=25).reshape(5, 5)
    assert np.all(np.diag(counts) == 0)
    assert stats.chisquare(counts[~np.eye(5, dtype=bool)]).pvalue > 1e-6
