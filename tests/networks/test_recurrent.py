"""The GRU: a NumPy reference, and memory that never crosses the border between two episodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxrl_scale.config import NetworkConfig
from purejaxrl_scale.environments.interface import Box, Discrete
from purejaxrl_scale.networks import make_actor_critic
from purejaxrl_scale.networks.recurrent import GRU

SPACE = Box(np.full(3, -1, np.float32), np.full(3, 1, np.float32), (3,))


def make(shared: bool, **options):
    actor_critic = make_actor_critic(
        NetworkConfig(widths=(8,), recurrent=True, hidden_size=5, shared=shared, **options), SPACE, Discrete(4)
    )
    params = jax.jit(actor_critic.init)(jax.random.key(0), jnp.zeros(3))
    # The actor's last layer starts so small that a wrong memory would hide in it.
    params["actor"]["kernel"] = 100 * params["actor"]["kernel"]
    return actor_critic, params


def test_equations():
    gru, (steps, batch, size) = GRU(4), (3, 2, 4)
    features = jax.random.normal(jax.random.key(0), (steps, batch, 3))
    memory = jax.random.normal(jax.random.key(1), (batch, size))
    first = jnp.array([[False, True], [False, False], [True, False]])
    params = gru.init(jax.random.key(2), memory, features, first)["params"]
    params = jax.tree.map(lambda leaf: leaf + 0.1, params)
    last, outputs = gru.apply({"params": params}, memory, features, first)

    w, b, u, c = (
        np.asarray(leaf, np.float64)
        for leaf in (
            params["input"]["kernel"],
            params["input"]["bias"],
            params["recurrent_kernel"],
            params["candidate_bias"],
        )
    )
    hidden = np.asarray(memory, np.float64)
    for t in range(steps):
        hidden = np.where(np.asarray(first[t])[:, None], 0.0, hidden)
        x, h = np.asarray(features[t]) @ w + b, hidden @ u
        r, z = (1 / (1 + np.exp(-(x[:, s] + h[:, s]))) for s in (slice(0, 4), slice(4, 8)))
        n = np.tanh(x[:, 8:] + r * (h[:, 8:] + c))
        hidden = (1 - z) * n + z * hidden
        np.testing.assert_allclose(outputs[t], hidden, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(last, outputs[-1])


@pytest.mark.parametrize("shared", [True, False])
def test_two_episodes_back_to_back_equal_the_two_apart(shared):
    actor_critic, params = make(shared)
    observation = jax.random.normal(jax.random.key(1), (7, 1, 3))
    first = jnp.array([1, 0, 0, 1, 0, 0, 0], bool)[:, None]
    # Whatever an earlier episode left behind must not matter either.
    memory = jax.tree.map(lambda leaf: leaf + 3.0, actor_critic.initial_memory(1))
    together, value = actor_critic.unroll(params, memory, observation, first)
    for part in (slice(0, 3), slice(3, 7)):
        alone, alone_value = actor_critic.unroll(params, actor_critic.initial_memory(1), observation[part], first[part])
        np.testing.assert_allclose(together.logits[part], alone.logits, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(value[part], alone_value, rtol=1e-6, atol=1e-6)
    ignoring, _ = actor_critic.unroll(params, memory, observation, first.at[3].set(False))
    assert np.abs(ignoring.logits[3] - together.logits[3]).max() > 1e-3


@pytest.mark.parametrize("shared", [True, False])
def test_unroll_equals_steps_and_the_first_ratio_is_one(shared):
    actor_critic, params = make(shared)
    steps, batch = 6, 4
    observation = jax.random.normal(jax.random.key(1), (steps, batch, 3))
    first = jax.random.bernoulli(jax.random.key(2), 0.3, (steps, batch))
    stored = jax.tree.map(lambda leaf: leaf + 0.5, actor_critic.initial_memory(batch))
    step = jax.jit(actor_critic.step)
    memory, actions, log_probs, values = stored, [], [], []
    for t in range(steps):
        memory, distribution, value = step(params, memory, observation[t], first[t])
        actions.append(distribution.sample(jax.random.split(jax.random.key(t), batch)))
        log_probs.append(distribution.log_prob(actions[-1]))
        values.append(value)
    distribution, value = jax.jit(actor_critic.unroll)(params, stored, observation, first)
    ratio = jnp.exp(distribution.log_prob(jnp.stack(actions)) - jnp.stack(log_probs))
    assert jnp.max(jnp.abs(ratio - 1)) <= 3e-7
    np.testing.assert_allclose(value, jnp.stack(values), rtol=1e-6, atol=1e-6)


def test_memory_is_float32_and_one_array_a_torso():
    assert jax.tree.map(jnp.shape, make(True)[0].initial_memory(3)) == ((3, 5),)
    actor_critic, params = make(False, compute_dtype="bfloat16")
    memory = actor_critic.initial_memory(3)
    after, _, _ = actor_critic.step(params, memory, jnp.ones((3, 3)), jnp.zeros(3, bool))
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), after) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), memory
    )
    assert len(after) == 2
    assert after[0].dtype == jnp.float32


def test_gradient_reaches_back_through_time_and_not_past_a_reset():
    actor_critic, params = make(True)
    memory = actor_critic.initial_memory(1)

    def last_value(observation, first):
        return actor_critic.unroll(params, memory, observation, first)[1][-1, 0]

    observation = jax.random.normal(jax.random.key(1), (4, 1, 3))
    gradient = jax.jit(jax.grad(last_value))(observation, jnp.array([1, 0, 0, 0], bool)[:, None])
    assert (np.abs(gradient).max(axis=(1, 2)) > 0).all()
    gradient = jax.jit(jax.grad(last_value))(observation, jnp.array([1, 0, 1, 0], bool)[:, None])
    assert (np.abs(gradient).max(axis=(1, 2)) > 0).tolist() == [False, False, True, True]
