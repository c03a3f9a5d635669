"""Minibatches, their gradients on one device and on eight, and loops whose counts are traced."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from purejaxrl_scale import hyperparameters
from purejaxrl_scale.algorithms import inner_loop, ppo
from purejaxrl_scale.config import (
    AdaptiveBatchConfig,
    AlgorithmConfig,
    Config,
    DevicesConfig,
    EnvironmentConfig,
    MonitorsConfig,
    NetworkConfig,
)
from purejaxrl_scale.devices import DEVICE_AXIS
from tests.algorithms.linear import linear_policy, make_batch


def on_devices(count, function, in_specs, out_specs):
    mesh = jax.make_mesh((count,), (DEVICE_AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:count])
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def test_advantages_are_normalised_over_all_devices():
    mesh = jax.make_mesh((2,), (DEVICE_AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    spec = PartitionSpec(DEVICE_AXIS)
    sharded = jax.shard_map(
        lambda a: inner_loop.standardised(a, jnp.ones(a.shape, bool)), mesh=mesh, in_specs=spec, out_specs=spec
    )
    np.testing.assert_allclose(jax.jit(sharded)(jnp.array([0.0, 0.0, 2.0, 2.0])), [-1, -1, 1, 1], rtol=1e-5)


def test_invalid_samples_have_no_part_in_normalisation():
    normal = inner_loop.standardised(jnp.array([0.0, 2.0, 1e9]), jnp.array([True, True, False]))
    np.testing.assert_allclose(normal, [-1.0, 1.0, 0.0], rtol=1e-5)


@pytest.mark.parametrize(("count", "microbatch"), [(1, 0), (1, 16), (1, 24), (2, 8), (8, 0)])
def test_the_gradient_of_a_minibatch_by_hand_on_any_number_of_devices(count, microbatch, key):
    """Also as a sum of microbatches, of which the last is partial for 24 (of 64)."""
    params, batch, expected = make_batch(64)
    config = Config(
        environment=EnvironmentConfig(num_envs=64),
        algorithm=AlgorithmConfig(rollout_length=1, minibatch_size=64, microbatch_size=microbatch),
    )
    numbers = hyperparameters.from_config(config)
    learnt = ppo.init(config.algorithm, params)

    def objective(params, learnt, memory, batch, keys):
        return ppo.loss(linear_policy, config.algorithm, numbers, params, None, memory, batch, keys)

    def of_shard(batch):
        local = batch.log_prob.shape[1]
        source = inner_loop.Source(jax.tree.map(lambda leaf: leaf[0], batch), (), local)
        drawn = inner_loop.draw(config, key, inner_loop.cut(config, 1), jnp.int32(0), local)
        return inner_loop.minibatch_gradient(objective, config, learnt, source, drawn, key, normalise_advantages=True)

    gradient, parts = jax.jit(on_devices(count, of_shard, PartitionSpec(None, DEVICE_AXIS), PartitionSpec()))(batch)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), gradient, expected)
    assert float(parts["policy/clip_fraction"]) == 0.0
    np.testing.assert_allclose(parts["policy/kl_k3"], 0.0, atol=1e-6)


def shuffle_config(num_envs, rollout_length, minibatch_size, shards, segment=None):
    return Config(
        environment=EnvironmentConfig(num_envs=num_envs),
        network=NetworkConfig(recurrent=segment is not None, segment_length=segment or 0),
        algorithm=AlgorithmConfig(rollout_length=rollout_length, minibatch_size=minibatch_size),
        devices=DevicesConfig(logical_shards=shards),
    )


def rows_of(config, key, number, num_local, length=None):
    """The samples of a minibatch on one device, i32[L, B]."""
    cut = inner_loop.cut(config, length)
    drawn = inner_loop.draw(config, key, cut, jnp.int32(number), num_local)
    rows = np.asarray(drawn.rows)[:, :, : int(drawn.size)]
    return np.moveaxis(rows, 0, 1).reshape(rows.shape[1], -1)


@pytest.mark.parametrize("segment", [None, 4])
def test_every_sample_once_an_epoch(key, segment):
    config = shuffle_config(16, 8, 32, 4, segment)
    rows = [rows_of(config, key, number, 16) for number in range(config.num_minibatches)]
    assert all(row.shape == (segment or 1, 32 // (segment or 1)) for row in rows)
    np.testing.assert_array_equal(np.sort(np.concatenate(rows, axis=None)), np.arange(16 * 8))
    if segment:
        steps, envs = rows[0] // 16, rows[0] % 16
        assert np.all(envs == envs[0])
        np.testing.assert_array_equal(steps, steps[0] + np.arange(4)[:, None])
        assert np.all(steps[0] % 4 == 0)


def adaptive_config(rule, minimum=4, maximum=16, size=16):
    """16 environments in 4 logical shards; rollouts of 4 to 16 steps."""
    return Config(
        environment=EnvironmentConfig(num_envs=16),
        algorithm=AlgorithmConfig(
            rollout_length=maximum,
            minibatch_size=size,
            microbatch_size=8,
            adaptive_batch=AdaptiveBatchConfig(driver="kl", minimum=minimum, maximum=maximum, minibatches=rule),
        ),
        devices=DevicesConfig(logical_shards=4),
    )


@pytest.mark.parametrize("rule", ["fixed_count", "fixed_size"])
@pytest.mark.parametrize("length", [4, 7, 16])
def test_every_sample_once_an_epoch_at_every_length(key, rule, length):
    """Sizes differ by at most one sample a logical shard, under one compile for all lengths."""
    config = adaptive_config(rule)
    cut = inner_loop.cut(config, jnp.int32(length))
    count = int(cut.minibatches)
    assert count == (4 if rule == "fixed_count" else max(1, 16 * length // 16))
    rows = [rows_of(config, key, number, 16, jnp.int32(length)) for number in range(count)]
    np.testing.assert_array_equal(np.sort(np.concatenate(rows, axis=None)), np.arange(16 * length))
    sizes = {row.shape[1] // 4 for row in rows}
    assert max(sizes) - min(sizes) <= 1


def test_epochs_follow_the_length():
    config = adaptive_config("fixed_count", minimum=16, maximum=128)
    options = AdaptiveBatchConfig(
        driver="kl", minimum=16, maximum=128, epochs="proportional", epochs_length=32, minimum_epochs=2
    )
    config = Config(
        environment=config.environment,
        algorithm=AlgorithmConfig(rollout_length=128, minibatch_size=64, epochs=2, adaptive_batch=options),
    )
    lengths = [16, 32, 48, 64, 96, 128]
    assert [int(inner_loop.cut(config, jnp.int32(length)).epochs) for length in lengths] == [2, 2, 3, 4, 6, 8]


def test_minibatches_hold_the_same_samples_on_any_number_of_devices(key):
    num_envs, length = 16, 8
    config = shuffle_config(num_envs, length, 32, 8)
    label = jnp.arange(length * num_envs).reshape(length, num_envs)
    found = []
    for count in (1, 2, 4, 8):

        def labels(local):
            drawn = inner_loop.draw(config, key, inner_loop.cut(config, length), jnp.int32(1), local.shape[1])
            return local.reshape(-1)[drawn.rows[:, 0, : 32 // 8]]

        sharded = on_devices(count, labels, PartitionSpec(None, DEVICE_AXIS), PartitionSpec(DEVICE_AXIS))
        found.append(np.asarray(jax.jit(sharded)(label)))
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_the_noise_scale_of_microbatches_by_hand(key):
    """tr Σ and |G|² of one minibatch of 64 from microbatches of 16, against NumPy on the same four gradients."""
    params, batch, _ = make_batch(64)
    batch = batch._replace(valid=jnp.ones((1, 64), bool))
    config = Config(
        environment=EnvironmentConfig(num_envs=64),
        algorithm=AlgorithmConfig(rollout_length=1, minibatch_size=64, microbatch_size=16, normalise_advantages=False),
        monitors=MonitorsConfig(noise_scale=True),
    )
    numbers = hyperparameters.from_config(config)
    learnt = ppo.init(config.algorithm, params)

    def objective(params, learnt, memory, batch, keys):
        return ppo.loss(linear_policy, config.algorithm, numbers, params, None, memory, batch, keys)

    source = inner_loop.Source(jax.tree.map(lambda leaf: leaf[0], batch), (), 64)
    drawn = inner_loop.draw(config, key, inner_loop.cut(config, 1), jnp.int32(0), 64)
    _, parts = inner_loop.minibatch_gradient(objective, config, learnt, source, drawn, key, normalise_advantages=False)
    gradients = []
    for number in range(4):
        rows = np.asarray(drawn.rows)[:, 0, number * 2 : number * 2 + 2].reshape(-1)
        some = jax.tree.map(lambda leaf, rows=rows: leaf[:, rows], batch)
        slope = jax.grad(lambda params, some=some: objective(params, learnt, (), some, None)[0])(params)
        gradients.append(np.concatenate([np.asarray(slope["v"]), np.asarray(slope["w"])]).astype(np.float64) / 16)
    mean = np.mean(gradients, axis=0)
    variance = 16 * sum(np.sum((one - mean) ** 2) for one in gradients) / 3
    np.testing.assert_allclose(parts["outer/gradient_variance"], variance, rtol=1e-3)
    np.testing.assert_allclose(parts["outer/gradient_norm_sq"], np.sum(mean**2) - variance / 64, rtol=1e-3, atol=1e-7)
