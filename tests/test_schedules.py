"""Learning rates by hand, and none that is zero before the end."""

import jax.numpy as jnp
import numpy as np
import pytest

from purejaxrl_scale.schedules import learning_rate


def rate(schedule, remaining, warmup=0.1):
    return float(learning_rate(schedule, jnp.float32(2.0), jnp.float32(remaining), warmup_fraction=jnp.float32(warmup)))


@pytest.mark.parametrize(
    ("schedule", "remaining", "expected"),
    [
        ("constant", 0.3, 2.0),
        ("linear", 1.0, 2.0),
        ("linear", 0.75, 1.5),
        ("linear", 1e-12, 2e-12),
        ("warmup_cosine", 1.0, 0.2),
        ("warmup_cosine", 0.95, 1.1),
        ("warmup_cosine", 0.9, 2.0),
        ("warmup_cosine", 0.45, 1.0),
        ("warmup_cosine", 0.225, 1.0 + np.cos(0.75 * np.pi)),
    ],
)
def test_values(schedule, remaining, expected):
    np.testing.assert_allclose(rate(schedule, remaining), expected, rtol=1e-5)


@pytest.mark.parametrize("schedule", ["constant", "linear", "warmup_cosine"])
@pytest.mark.parametrize("steps", [37, 10**8])
def test_every_optimiser_step_learns(schedule, steps):
    """10^8 steps is beyond float32's 2^24: 1 - k / steps would be 0 for the last ones."""
    rates = [rate(schedule, left / steps) for left in (1, 2, steps // 2, steps)]
    assert min(rates) > 0
    assert rates[0] < rates[1] or schedule == "constant"
