"""What is measured of one outer step, on states given as plain arrays."""

import jax.numpy as jnp
import numpy as np

from purejaxrl_scale.networks.distributions import Categorical
from purejaxrl_scale.outer_loop import monitors
from purejaxrl_scale.outer_loop.monitors import States


def test_the_preferred_action_of_no_policy_is_unknown():
    """Three states: the same action, another one, and logits that are NaN, whose mode would be an index like any."""
    old = jnp.array([[[2.0, 1.0], [2.0, 1.0], [2.0, 1.0]]])
    new = jnp.array([[[3.0, 1.0], [0.0, 1.0], [jnp.nan, jnp.nan]]])
    states = States(
        observation=jnp.zeros((1, 3, 1)),
        memory=(),
        is_first=jnp.zeros((1, 3), bool),
        action=jnp.zeros((1, 3), jnp.int32),
        log_prob=jnp.zeros((1, 3)),
        policy=Categorical(old),
    )
    measure = monitors.changed_actions(lambda params, *_: Categorical(params), new)
    np.testing.assert_array_equal(measure(states)["outer/behavioural_divergence"], [[0.0, 1.0, np.nan]])
