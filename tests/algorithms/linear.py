"""A policy and a batch whose loss and gradient can be written down."""

import jax.numpy as jnp
import numpy as np

from purejaxrl_scale.algorithms import ppo
from purejaxrl_scale.networks.distributions import Categorical


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
