"""PPO's losses by hand, and the gradient of a minibatch on one device and on eight."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from purejaxrl_scale.algorithms import ppo
from purejaxrl_scale.config import AlgorithmConfig, Config, DevicesConfig, EnvironmentConfig, NetworkConfig
from purejaxrl_scale.devices import DEVICE_AXIS
from purejaxrl_scale.networks.distributions import Categorical


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.0, 2.0, 2.0),
        (1.1, 2.0, 2.2),
        (1.5, 2.0, 2.4),
        (0.5, 2.0, 1.0),
        (1.5, -2.0, -3.0),
        (0.5, -2.0, -1.6),
    ],
)
def test_surrogate_by_hand(ratio, advantage, expected):
    log_prob = jnp.log(jnp.array([0.3 * ratio]))
    old = jnp.log(jnp.array([0.3]))
    value = ppo.surrogate(log_prob, old, old, jnp.array([advantage]), clip=0.2)
    np.testing.assert_allclose(value, [expected], rtol=1e-6)


def test_surrogate_stops_pulling_outside_the_clip():
    slope = jax.grad(lambda log_ratio, a: ppo.surrogate(log_ratio, 0.0 * log_ratio, 0.0 * log_ratio, a, clip=0.2).sum())
    inside, outside = jnp.log(jnp.array([1.1])), jnp.log(jnp.array([1.3]))
    assert float(slope(inside, jnp.ones(1))[0]) == pytest.approx(1.1)
    assert float(slope(outside, jnp.ones(1))[0]) == 0.0
    assert float(slope(outside, -jnp.ones(1))[0]) == pytest.approx(-1.3)
    assert float(slope(jnp.zeros(1), jnp.ones(1))[0]) == pytest.approx(1.0)


def test_decoupled_surrogate_is_weight_times_clipped_ratio():
    rng = np.random.default_rng(0)
    new, behaviour, reference, advantage = rng.normal(0, 0.3, (4, 50))
    ratio = np.exp(new - reference)
    expected = np.exp(reference - behaviour) * np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
    arrays = [jnp.asarray(x, jnp.float32) for x in (new, behaviour, reference, advantage)]
    np.testing.assert_allclose(ppo.surrogate(*arrays, clip=0.2), expected, rtol=2e-5, atol=1e-6)


def test_importance_ratio_is_capped_at_100():
    value = ppo.surrogate(jnp.array([0.0]), jnp.array([-9.0]), jnp.array([0.0]), jnp.ones(1), clip=0.2)
    np.testing.assert_allclose(value, [100.0], rtol=1e-5)


def test_value_loss_by_hand():
    value, old, target = jnp.array([1.0, 1.0]), jnp.array([0.0, 0.9]), jnp.array([2.0, 2.0])
    np.testing.assert_allclose(ppo.value_loss(value, old, target, clip=None), [0.5, 0.5])
    # The first value moved by 1 and counts as moved by 0.2: ½ (0.2 - 2)² = 1.62.
    np.testing.assert_allclose(ppo.value_loss(value, old, target, clip=0.2), [1.62, 0.5], rtol=1e-6)


def test_global_norm_and_not_elementwise_clipping():
    optimiser = ppo.make_optimiser(AlgorithmConfig(), 0.5)
    gradient = {"w": jnp.array([3.0, 4.0])}
    step, state = optimiser.update(gradient, optimiser.init(gradient))
    # After one step Adam's first moment is (1 - β₁) g of the gradient that it was given.
    np.testing.assert_allclose(state[1].mu["w"] / 0.1, [0.3, 0.4], rtol=1e-6)
    # Adam's first step is the sign of the gradient (up to its epsilon), whatever the norm.
    np.testing.assert_allclose(step["w"], [1.0, 1.0], rtol=1e-3)


def test_advantages_are_normalised_over_all_devices():
    mesh = jax.make_mesh((2,), (DEVICE_AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    spec = PartitionSpec(DEVICE_AXIS)
    sharded = jax.shard_map(
        lambda a: ppo.standardised(a, jnp.ones(a.shape, bool)), mesh=mesh, in_specs=spec, out_specs=spec
    )
    np.testing.assert_allclose(jax.jit(sharded)(jnp.array([0.0, 0.0, 2.0, 2.0])), [-1, -1, 1, 1], rtol=1e-5)


def test_invalid_samples_have_no_part_in_normalisation():
    normal = ppo.standardised(jnp.array([0.0, 2.0, 1e9]), jnp.array([True, True, False]))
    np.testing.assert_allclose(normal, [-1.0, 1.0, 0.0], rtol=1e-5)


def linear_policy(params, memory, observation, is_first):
    """Two actions with logits (0, w · x) and the value v · x, so that gradients can be written down."""
    logit = jnp.einsum("lbd,d->lb", observation, params["w"])
    logits = jnp.stack([jnp.zeros_like(logit), logit], axis=-1)
    return Categorical(logits), jnp.einsum("lbd,d->lb", observation, params["v"])


def make_batch(size, seed=0):
    rng = np.random.default_rng(seed)
    observation = rng.normal(size=(1, size, 3))
    action = rng.integers(0, 2, (1, size))
    w, v = np.array([0.3, -0.2, 0.5]), np.array([0.1, 0.4, -0.3])
    probability = 1 / (1 + np.exp(-observation @ w))
    log_prob = np.log(np.where(action == 1, probability, 1 - probability))
    advantage, target = rng.normal(size=(2, 1, size))
    valid = rng.random((1, size)) < 0.8
    batch = ppo.Batch(
        observation=jnp.asarray(observation, jnp.float32),
        action=jnp.asarray(action, jnp.int32),
        log_prob=jnp.asarray(log_prob, jnp.float32),
        value=jnp.asarray(observation @ v, jnp.float32),
        advantage=jnp.asarray(advantage, jnp.float32),
        target=jnp.asarray(target, jnp.float32),
        valid=jnp.asarray(valid),
        is_first=jnp.zeros((1, size), bool),
    )
    params = {"w": jnp.asarray(w, jnp.float32), "v": jnp.asarray(v, jnp.float32)}
    # At ratio 1 the surrogate's gradient is A ∇log π, and the clipped value loss is the plain one.
    mean, std = advantage[valid].mean(), advantage[valid].std()
    normal = np.where(valid, (advantage - mean) / (std + 1e-8), 0)
    entropy_slope = -probability * (1 - probability) * (observation @ w)
    dlogit = -normal * (action - probability) - 0.01 * np.where(valid, entropy_slope, 0)
    dvalue = 0.5 * np.where(valid, observation @ v - target, 0)
    gradient = {
        "w": np.einsum("lb,lbd->d", dlogit, observation) / valid.sum(),
        "v": np.einsum("lb,lbd->d", dvalue, observation) / valid.sum(),
    }
    return params, batch, gradient


NUMBERS = ppo.Coefficients(
    clip=jnp.float32(0.2),
    entropy_coefficient=jnp.float32(0.01),
    value_coefficient=jnp.float32(0.5),
    max_gradient_norm=jnp.float32(1e9),
)


@pytest.mark.parametrize(("count", "microbatch"), [(1, 0), (1, 16), (1, 24), (2, 5), (8, 0)])
def test_the_gradient_of_a_minibatch_by_hand_on_any_number_of_devices(count, microbatch, key):
    """Also as a sum of microbatches, of which the last is partial for 24 (of 64) and 5 (of 32)."""
    params, batch, expected = make_batch(64)
    mesh = jax.make_mesh((count,), (DEVICE_AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:count])

    def of_shard(batch):
        local = batch.log_prob.shape[1]
        source = ppo.Source(jax.tree.map(lambda leaf: leaf[0], batch), (), local)
        config = Config(algorithm=AlgorithmConfig(microbatch_size=microbatch))
        rows = jnp.arange(local, dtype=jnp.int32)[None]
        return ppo.minibatch_gradient(linear_policy, config, params, source, rows, NUMBERS, key)

    sharded = jax.shard_map(
        of_shard, mesh=mesh, in_specs=PartitionSpec(None, DEVICE_AXIS), out_specs=PartitionSpec(), check_vma=False
    )
    gradient, parts = jax.jit(sharded)(batch)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6), gradient, expected)
    assert float(parts["policy/clip_fraction"]) == 0.0
    np.testing.assert_allclose(parts["policy/kl_k3"], 0.0, atol=1e-6)


def shuffle_config(num_envs, rollout_length, minibatch_size, shards, segment=None):
    return Config(
        environment=EnvironmentConfig(num_envs=num_envs),
        network=NetworkConfig(recurrent=segment is not None, segment_length=segment or 0),
        algorithm=AlgorithmConfig(rollout_length=rollout_length, minibatch_size=minibatch_size),
        devices=DevicesConfig(logical_shards=shards),
    )


@pytest.mark.parametrize("segment", [None, 4])
def test_every_sample_once_an_epoch(key, segment):
    config = shuffle_config(16, 8, 32, 4, segment)
    rows = [np.asarray(ppo.minibatch_rows(config, key, jnp.uint32(m), 16)) for m in range(config.num_minibatches)]
    assert all(row.shape == (segment or 1, 32 // (segment or 1)) for row in rows)
    np.testing.assert_array_equal(np.sort(np.concatenate(rows, axis=None)), np.arange(16 * 8))
    if segment:
        steps, envs = rows[0] // 16, rows[0] % 16
        assert np.all(envs == envs[0])
        np.testing.assert_array_equal(steps, steps[0] + np.arange(4)[:, None])
        assert np.all(steps[0] % 4 == 0)


def test_minibatches_hold_the_same_samples_on_any_number_of_devices(key):
    num_envs, length = 16, 8
    config = shuffle_config(num_envs, length, 32, 8)
    label = jnp.arange(length * num_envs).reshape(length, num_envs)
    found = []
    for count in (1, 2, 4, 8):
        mesh = jax.make_mesh((count,), (DEVICE_AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:count])

        def labels(local, count=count):
            rows = ppo.minibatch_rows(config, key, jnp.uint32(1), num_envs // count)
            return local.reshape(-1)[rows]

        spec = PartitionSpec(None, DEVICE_AXIS)
        sharded = jax.shard_map(labels, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
        found.append(np.asarray(jax.jit(sharded)(label)))
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])
