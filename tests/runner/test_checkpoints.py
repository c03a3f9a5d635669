import shutil
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from purejaxrl_scale.runner import checkpoints
from purejaxrl_scale.runner.folders import RunError


class State(NamedTuple):
    weights: jax.Array
    half: jax.Array
    empty: jax.Array
    count: jax.Array
    flags: jax.Array
    key: jax.Array
    nested: dict


def make_state(fill, sharding=None):
    state = State(
        weights=jnp.arange(16.0).reshape(8, 2) * fill,
        half=jnp.full(8, 1.1 * fill, jnp.bfloat16),
        empty=jnp.zeros((8, 0)),
        count=jnp.uint32(fill),
        flags=jnp.arange(8) % 2 == fill % 2,
        key=jax.random.key(fill),
        nested={"a/b": (jnp.int32(fill), ()), "keys": jax.random.split(jax.random.key(fill), 8)},
    )
    if sharding is None:
        return state
    put = lambda leaf: jax.device_put(leaf, sharding if leaf.ndim else NamedSharding(sharding.mesh, PartitionSpec()))  # noqa: E731
    return jax.tree.map(put, state)


def save(path, state, step=7, **meta):
    saver = checkpoints.Checkpoints(path, keep=2)
    saver.save(step, checkpoints.to_host(state), meta)
    saver.wait()
    saver.close()


def bits(state):
    return checkpoints.to_host(state)


def test_every_kind_of_leaf_comes_back_bit_for_bit(tmp_path):
    state = make_state(3)
    save(tmp_path, state, steps=2**40 + 1, pending={"loss": [0.1, 2]})
    restored = checkpoints.restore(tmp_path, 7)
    assert restored.meta == {"steps": 2**40 + 1, "pending": {"loss": [0.1, 2]}}
    back = checkpoints.from_host(make_state(5), restored.leaves)
    assert jax.tree.structure(back) == jax.tree.structure(state)
    np.testing.assert_equal(bits(back), bits(state))
    assert [leaf.dtype for leaf in jax.tree.leaves(back)] == [leaf.dtype for leaf in jax.tree.leaves(state)]
    np.testing.assert_array_equal(jax.random.normal(back.key, 4), jax.random.normal(state.key, 4))


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_what_eight_devices_saved_any_number_restores(tmp_path, count):
    def sharding(count):
        mesh = Mesh(np.array(jax.devices()[:count]), ("devices",))
        return NamedSharding(mesh, PartitionSpec("devices"))

    state = make_state(3, sharding(8))
    save(tmp_path, state)
    template = make_state(5, sharding(count))
    back = checkpoints.from_host(template, checkpoints.restore(tmp_path, 7).leaves)
    np.testing.assert_equal(bits(back), bits(state))
    for leaf, expected in zip(jax.tree.leaves(back), jax.tree.leaves(template), strict=True):
        assert leaf.sharding == expected.sharding


def test_saved_arrays_do_not_follow_a_donated_buffer():
    state = jnp.zeros(1000)
    leaves = checkpoints.to_host({"a": state})
    jax.block_until_ready(jax.jit(lambda leaf: leaf + 1, donate_argnums=0)(state))
    assert not leaves["a"].any()


def test_the_newest_are_kept(tmp_path):
    saver = checkpoints.Checkpoints(tmp_path, keep=2)
    for step in (1, 2, 3, 3):
        saver.save(step, {"a": np.ones(2)}, {})
        saver.wait()
    saver.close()
    assert checkpoints.steps(tmp_path) == [2, 3]
    assert checkpoints.steps(tmp_path / "none") == []


def test_the_best_are_kept_beside_the_newest(tmp_path):
    def save(saver, step, score):
        saver.save(step, {"a": np.ones(2)}, {"score": score})
        saver.wait()

    saver = checkpoints.Checkpoints(tmp_path, keep=2, keep_best=1)
    for step, score in ((1, 5.0), (2, 9.0), (3, None), (4, -1.0)):
        save(saver, step, score)
    saver.close()
    assert checkpoints.steps(tmp_path) == [2, 3, 4]
    assert checkpoints.best(tmp_path) == 2
    # Another process knows the scores from the disk.
    saver = checkpoints.Checkpoints(tmp_path, keep=1, keep_best=1)
    save(saver, 5, 9.0)
    assert checkpoints.steps(tmp_path) == [5]
    save(saver, 6, 8.0)
    saver.close()
    assert checkpoints.steps(tmp_path) == [5, 6]
    assert checkpoints.best(tmp_path) == 5


def test_fewer_than_the_best_asked_for_are_all_kept(tmp_path):
    saver = checkpoints.Checkpoints(tmp_path, keep=1, keep_best=3)
    kept = []
    for step, score in ((1, 1.0), (2, 5.0), (3, 4.0), (4, 3.0), (5, 0.0)):
        saver.save(step, {"a": np.ones(2)}, {"score": score})
        saver.wait()
        kept.append(checkpoints.steps(tmp_path))
    saver.close()
    assert kept == [[1], [1, 2], [1, 2, 3], [2, 3, 4], [2, 3, 4, 5]]


def test_a_half_written_checkpoint_is_never_picked(tmp_path):
    """As kill -9 leaves one: under its passing name, or without one of its two parts."""
    saver = checkpoints.Checkpoints(tmp_path, keep=3)
    for step in (1, 2, 3):
        saver.save(step, checkpoints.to_host(make_state(step)), {})
    saver.wait()
    saver.close()
    folder = tmp_path / "checkpoints"
    (folder / "3").rename(folder / "3.orbax-checkpoint-tmp-99")
    shutil.rmtree(folder / "2" / "state")
    assert checkpoints.steps(tmp_path) == [1]
    assert checkpoints.restore(tmp_path, checkpoints.steps(tmp_path)[-1]).leaves


def test_flipped_bits_are_found(tmp_path):
    """TensorStore restores them without a word."""
    saver = checkpoints.Checkpoints(tmp_path, keep=1)
    saver.save(1, {"weights": np.random.default_rng(0).normal(size=10_000)}, {"steps": 3})
    saver.wait()
    saver.close()
    assert checkpoints.restore(tmp_path, 1).meta == {"steps": 3}
    largest = max((tmp_path / "checkpoints" / "1" / "state").rglob("*"), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    with pytest.raises(RunError, match="cannot be read"):
        checkpoints.restore(tmp_path, 1)


def test_without_scores_there_is_no_best(tmp_path):
    save(tmp_path, make_state(3))
    with pytest.raises(RunError, match=r"no checkpoint of .* has a score"):
        checkpoints.best(tmp_path)


def test_members_are_cut_out_and_put_together():
    population = checkpoints.to_host(
        {"a": jnp.arange(6.0).reshape(3, 2), "key": jax.random.split(jax.random.key(0), 3)}
    )
    members = [checkpoints.member_leaves(population, member) for member in range(3)]
    np.testing.assert_array_equal(members[1]["a"], [2.0, 3.0])
    np.testing.assert_equal(checkpoints.stack(members, [0, 1, 2]), population)


def test_another_config_s_checkpoint_is_refused():
    leaves = checkpoints.to_host({"a": jnp.zeros(3), "b": jnp.zeros(2)})
    with pytest.raises(RunError, match=r"a is float32\[3\] there and float32\[4\] here"):
        checkpoints.from_host({"a": jnp.zeros(4), "b": jnp.zeros(2)}, leaves)
    with pytest.raises(RunError, match="b is in only one"):
        checkpoints.from_host({"a": jnp.zeros(3)}, leaves)
