"""Learning rates by hand, and none that is zero before the end."""

import jax.numpy as jnp
import numpy as np
import pytest

from purejaxrl_scale.schedules import learning_rate


def rate(schedule, progress, warmup=0.1):
    return float(learning_rate(schedule, jnp.float32(2.0), jnp.float32(progress), warmup_fraction=jnp.float32(warmup)))


@pytest.mark.parametrize(
    ("schedule", "progress", "expected"),
    [
        ("constant", 0.7, 2.0),
        ("linear", 0.0, 2.0),
        ("linear", 0.25, 1.5),
        ("linear", 1.0, 0.0),
        ("linear", 1.2, 0.0),
        ("warmup_cosine", 0.0, 0.2),
        ("warmup_cosine", 0.05, 1.1),
        ("warmup_cosine", 0.1, 2.0),
        ("warmup_cosine", 0.55, 1.0),
        ("warmup_cosine", 1.0, 0.0),
    ],
)
def test_values(schedule, progress, expected):
    np.testing.assert_allclose(rate(schedule, progress), expected, atol=1e-6)


@pytest.mark.parametrize("schedule", ["constant", "linear", "warmup_cosine"])
def test_every_optimiser_step_learns(schedule):
    steps = 37
    assert all(rate(schedule, k / steps) > 0 for k in range(steps))
