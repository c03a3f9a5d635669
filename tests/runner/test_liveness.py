"""Peaks of small functions, counted by hand."""

import jax
import jax.numpy as jnp
import pytest

from purejaxrl_scale.runner.liveness import bytes_of, temporaries

SIDE = 64
MATRIX = jax.ShapeDtypeStruct((SIDE, SIDE), jnp.float32)
SIZE = 4 * SIDE * SIDE


def buffers(function, *arguments, **options):
    """The peak in matrices."""
    return temporaries(function, *arguments, **options)[0] / SIZE


def test_elementwise_work_is_fused():
    assert buffers(lambda x: jnp.tanh(x + 1.0) * 2.0, MATRIX) == 1
    assert buffers(lambda x: jnp.sum(jnp.tanh(x) ** 2), MATRIX) * SIZE == 4


def test_a_matrix_product_needs_whole_operands_and_a_place_of_its_own():
    assert buffers(lambda x: x @ x, MATRIX) == 1
    # The first product is read by the second, which cannot overwrite it; the third takes the first one's place.
    assert buffers(lambda x: x @ x @ x @ x, MATRIX) == 2
    assert buffers(lambda x: jnp.tanh(x @ x) @ x, MATRIX) == 2  # tanh goes in place


def test_what_is_read_later_stays():
    def residual(x):
        first = x @ x
        return (first @ x) @ x + first

    assert buffers(residual, MATRIX) == 3


def test_arguments_are_overwritten_only_where_that_is_allowed():
    assert buffers(lambda x: x + 1.0, MATRIX) == 1
    assert buffers(lambda x: x + 1.0, MATRIX, overwrites=True) == 0


def test_two_branches_are_taken_side_by_side():
    """What became ready first is computed first: both first layers, then both second ones."""

    def towers(x, one, other):
        return jnp.tanh(jnp.tanh(x @ one) @ one).sum() + jnp.tanh(jnp.tanh(x @ other) @ other).sum()

    assert buffers(towers, MATRIX, MATRIX, MATRIX) == 3


def test_a_loop_updates_in_place_what_it_carries():
    def fill(rows):
        return jax.lax.fori_loop(0, 8, lambda i, rows: rows.at[i].set(jnp.tanh(rows[i] + 1.0)), rows)

    rows = jax.ShapeDtypeStruct((8, SIDE, SIDE), jnp.float32)
    assert buffers(fill, rows, overwrites=True) == pytest.approx(1, abs=0.01)
    assert buffers(fill, rows) == pytest.approx(9, abs=0.01)


def test_a_loop_holds_its_temporaries_once():
    def powers(x):
        return jax.lax.fori_loop(0, 100, lambda _, y: jnp.tanh(y @ x) @ x, x)

    # What it carries, and the first product; the second takes the place of what was carried.
    assert buffers(powers, MATRIX) == pytest.approx(2, abs=0.01)


def test_rows_that_a_scan_leaves_count():
    def rollout(x):
        return jax.lax.scan(lambda y, _: (y + 1.0, jnp.sin(y)), x, length=5)

    # What it carries, five rows, and the row that is being made.
    assert buffers(rollout, MATRIX) == pytest.approx(7, abs=0.01)


def test_a_branch_counts_where_it_needs_more_than_it_leaves():
    def either(flag, x):
        return jax.lax.cond(flag, lambda x: jnp.sum(x @ x @ x), lambda x: x[0, 0], x)

    assert 2 <= buffers(either, jax.ShapeDtypeStruct((), bool), MATRIX) < 2.01


def test_calls_are_looked_into():
    once = jax.jit(lambda x: x @ x)
    assert buffers(lambda x: once(once(once(x))), MATRIX) == 2
    assert buffers(jax.checkpoint(lambda x: x @ x), MATRIX) == 1
    assert buffers(lambda x: jax.nn.relu(x) @ x, MATRIX) == 2  # relu is a custom derivative


@pytest.mark.parametrize("layers", [1, 3])
def test_a_gradient_keeps_one_activation_a_layer(layers):
    """Of a network with one hidden layer of width 64 a layer: activations, the way back, and nothing else."""

    def loss(weights, x):
        for one in weights:
            x = jnp.tanh(x @ one)
        return jnp.mean(x**2)

    rows = jax.ShapeDtypeStruct((64 * SIDE, SIDE), jnp.float32)
    weights = [MATRIX] * layers
    assert layers <= buffers(jax.grad(loss), weights, rows) / 64 <= layers + 2


def test_it_agrees_with_xla():
    def loss(weights, x):
        for one in weights:
            x = jnp.tanh(x @ one)
        return jnp.mean(x**2)

    arguments = [MATRIX] * 4, jax.ShapeDtypeStruct((4096, SIDE), jnp.float32)
    planned = jax.jit(jax.grad(loss)).lower(*arguments).compile().memory_analysis()
    expected = planned.temp_size_in_bytes + planned.output_size_in_bytes
    assert temporaries(jax.grad(loss), *arguments)[0] == pytest.approx(expected, rel=0.15)


def test_bytes():
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 5))
    tree = {"keys": keys, "flags": jax.ShapeDtypeStruct((3,), bool), "half": jax.ShapeDtypeStruct((2,), jnp.bfloat16)}
    assert bytes_of(tree) == 5 * 8 + 3 + 4
