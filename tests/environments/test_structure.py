"""What reset and step say about the state is checked, and the culprit named."""

import jax
import jax.numpy as jnp
import pytest

from purejaxrl_scale.environments.structure import conform, strong


def test_strong_strips_weak_types():
    tree = strong({"time": 0, "angle": jnp.asarray(1.0) * 2, "flag": False})
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(tree))
    assert [leaf.dtype for leaf in jax.tree.leaves(tree)] == [jnp.float32, jnp.bool_, jnp.int32]


def test_conform_takes_the_dtypes_of_the_model():
    like = {"reward": jnp.float32(0), "count": jnp.int32(0)}
    out = conform({"reward": 1, "count": True}, like, "test")
    assert out["reward"].dtype == jnp.float32
    assert out["count"].dtype == jnp.int32
    assert not out["reward"].weak_type


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ({"position": jnp.zeros(3), "speed": jnp.zeros(2)}, r"position.*float32\[2\] became float32\[3\]"),
        ({"position": jnp.zeros(2), "speed": jnp.zeros(2), "extra": 1}, r"test: .*extra"),
        ({"position": jnp.zeros(2)}, r"test: .*speed"),
        ({"position": jnp.zeros(2, jnp.complex64), "speed": jnp.zeros(2)}, r"position.*complex64"),
    ],
)
def test_conform_names_the_leaf(new, message):
    with pytest.raises(TypeError, match=message):
        conform(new, {"position": jnp.zeros(2), "speed": jnp.zeros(2)}, "test")
