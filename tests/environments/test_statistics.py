"""Moments, episode statistics and discounted returns against plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from purejaxrl_scale import counters
from purejaxrl_scale.devices import DEVICE_AXIS
from purejaxrl_scale.environments.statistics import (
    discounted_returns,
    init_episodes,
    init_moments,
    standardise,
    update_episodes,
    update_moments,
)


def test_moments_of_several_batches_are_those_of_all_samples():
    rng = np.random.default_rng(0)
    batches = [rng.normal(3.0, 2.0, (4, 6, 5)) * (1 + i) for i in range(4)]
    moments = init_moments(jnp.zeros(5))
    for batch in batches:
        moments = update_moments(moments, jnp.asarray(batch, jnp.float32), jnp.ones((4, 6), bool))
    samples = np.concatenate([batch.reshape(-1, 5) for batch in batches])
    np.testing.assert_allclose(moments.mean, samples.mean(0), rtol=1e-5)
    np.testing.assert_allclose(moments.variance, samples.var(0), rtol=1e-5)
    assert counters.exact(moments.samples) == len(samples)


def test_variance_is_centred():
    """A mean of 10⁴ with deviation 1 loses every digit to E[x²] - E[x]² in float32."""
    samples = np.random.default_rng(1).normal(1e4, 1.0, (1000, 1)).astype(np.float32)
    moments = update_moments(init_moments(jnp.zeros(1)), jnp.asarray(samples), jnp.ones(1000, bool))
    np.testing.assert_allclose(moments.variance, samples.astype(np.float64).var(0), rtol=1e-3)


def test_variance_between_devices_counts():
    mesh = jax.make_mesh((2,), (DEVICE_AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    sharded = jax.shard_map(
        lambda x: update_moments(init_moments(0.0), x, jnp.ones(x.shape, bool)),
        mesh=mesh,
        in_specs=PartitionSpec(DEVICE_AXIS),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    moments = jax.jit(sharded)(jnp.array([0.0] * 4 + [2.0] * 4))
    assert float(moments.mean) == 1.0
    assert float(moments.variance) == 1.0
    assert counters.exact(moments.samples) == 8


def test_invalid_samples_count_for_nothing():
    samples = jnp.array([1.0, jnp.nan, 3.0, jnp.inf])
    moments = update_moments(init_moments(0.0), samples, jnp.array([True, False, True, False]))
    assert (float(moments.mean), float(moments.variance), counters.exact(moments.samples)) == (2.0, 1.0, 2)


def test_count_is_exact_beyond_32_bits():
    moments = init_moments(0.0)._replace(samples=counters.init(2**33 - 3))
    moments = update_moments(moments, jnp.zeros(3), jnp.ones(3, bool))
    assert counters.exact(moments.samples) == 8_589_934_592


def test_standardised_observations_are_bounded():
    moments = init_moments(jnp.zeros(2))._replace(mean=jnp.array([1.0, 0.0]), variance=jnp.array([4.0, 1.0]))
    np.testing.assert_allclose(standardise(jnp.array([[3.0, 50.0]]), moments), [[1.0, 10.0]], rtol=1e-6)


def test_episode_sums_by_hand():
    episodes = init_episodes(3)
    step = jax.jit(update_episodes)
    no = jnp.zeros(3, bool)
    episodes, sums = step(episodes, jnp.array([1.0, 2.0, 3.0]), no, no, {"success": jnp.zeros(3)})
    assert int(sums["episode/count"]) == 0
    ended = jnp.array([True, False, True])
    episodes, sums = step(
        episodes, jnp.array([1.0, 1.0, 1.0]), ended, jnp.array([False, False, True]), {"success": jnp.ones(3)}
    )
    # The third episode ended in broken physics and is not counted.
    assert int(sums["episode/count"]) == 1
    assert float(sums["episode/return_sum"]) == 2.0
    assert int(sums["episode/length_sum"]) == 2
    assert float(sums["episode/success_sum"]) == 1.0
    np.testing.assert_array_equal(episodes.episode_return, [0.0, 3.0, 0.0])
    np.testing.assert_array_equal(episodes.length, [0, 2, 0])


def test_artificial_first_episodes_are_not_logged():
    episodes = init_episodes(1, logged=False)
    ended = jnp.ones(1, bool)
    episodes, sums = update_episodes(episodes, jnp.ones(1), ended, ~ended, {})
    assert int(sums["episode/count"]) == 0
    _, sums = update_episodes(episodes, jnp.ones(1), ended, ~ended, {})
    assert int(sums["episode/count"]) == 1


@pytest.mark.parametrize("split", [1, 3, 5])
def test_discounted_returns_carry_over_rollouts(split):
    reward = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    ended = np.array([0, 0, 1, 0, 0, 0], bool)
    expected, total = [], 0.0
    for r, e in zip(reward, ended, strict=True):
        total = 0.9 * total + r
        expected.append(total)
        total = 0.0 if e else total
    carry, found = jnp.zeros(1), []
    for part in (slice(0, split), slice(split, None)):
        length = len(reward[part])
        # Two rows more than were filled, which must not move what is carried on.
        rest = np.zeros((2, 1))
        carry, returns = discounted_returns(
            carry,
            jnp.asarray(np.concatenate([reward[part, None], rest]), jnp.float32),
            jnp.asarray(np.concatenate([ended[part, None], rest.astype(bool)])),
            jnp.float32(0.9),
            length,
        )
        found.append(returns[:length])
    np.testing.assert_allclose(np.concatenate(found)[:, 0], expected, rtol=1e-6)
