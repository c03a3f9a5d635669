"""Work on marked rows reaches those rows and no others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxrl_scale.compaction import block_size, for_marked, put_rows, take_rows


@pytest.mark.parametrize("count", [0, 1, 3, 7, 8, 20])
@pytest.mark.parametrize("block", [1, 4, 8, 20])
def test_marked_rows_are_changed_once(count, block):
    size = 20
    rng = np.random.default_rng(count)
    mask = np.zeros(size, bool)
    mask[rng.choice(size, count, replace=False)] = True
    values = {"a": jnp.arange(size * 2.0).reshape(size, 2), "b": jnp.arange(size)}

    def body(rows, carry):
        new = jax.tree.map(lambda leaf: leaf + 100, take_rows(values, rows))
        return put_rows(carry, rows, new)

    changed = jax.jit(lambda mask: for_marked(mask, body, values, block=block))(jnp.asarray(mask))
    np.testing.assert_array_equal(changed["b"], np.arange(size) + 100 * mask)
    np.testing.assert_array_equal(changed["a"], np.asarray(values["a"]) + 100 * mask[:, None])


def test_blocks_run_as_often_as_needed():
    mask = jnp.arange(64) % 8 == 0
    calls = jax.jit(lambda mask: for_marked(mask, lambda rows, carry: carry + 1, 0, block=3))
    assert calls(mask) == 3
    assert calls(jnp.zeros(64, bool)) == 0


def test_blocks_are_small_against_the_batch():
    assert block_size(4) == 4
    assert block_size(256) == 8
    assert block_size(2048) == 32
