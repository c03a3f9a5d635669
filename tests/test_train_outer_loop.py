"""The outer loop within the outer step: traced lengths, changes in mid-run, monitors that only watch."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxrl_scale import counters
from purejaxrl_scale.algorithms import ppo
from purejaxrl_scale.config import AdaptiveBatchConfig, MonitorsConfig, ReferenceConfig
from purejaxrl_scale.outer_loop import divergence
from purejaxrl_scale.outer_loop.noise_scale import NoiseScale
from purejaxrl_scale.rollout import collect
from tests.probes import Clock
from tests.test_train import assert_equal, make_trainer

RESTLESS = {"every": 1, "window": 1, "burn_in": 1, "smoothing": 1.0, "minimum": 4, "maximum": 8}


def adaptive_trainer(count=1, total_steps=1000, **options):
    """16 environments x 4 to 8 steps: every outer step measures, and the length goes all the way at once."""
    options = {"driver": "kl", "low": 2e-5, "high": 2e-4, **RESTLESS, **options}
    trainer = make_trainer(
        Clock(), count=count, algorithm={"adaptive_batch": AdaptiveBatchConfig(**options), "minibatch_size": 32}
    )
    config = replace(trainer.config, total_steps=total_steps)
    return replace(trainer, config=config, simulation=trainer.simulation._replace(config=config))


@pytest.fixture(scope="module")
def adaptive():
    return adaptive_trainer()


@pytest.fixture(scope="module")
def adaptive_run(adaptive):
    return adaptive(jax.random.key(3))


def test_one_program_for_every_length(adaptive):
    state = adaptive.init(jax.random.key(3))
    lengths = []
    for outer_steps in (1, 2, 4, 3):
        state, metrics = adaptive.chunk(state, outer_steps)
        lengths += np.asarray(metrics["outer/rollout_length"])[np.asarray(metrics["valid"])].tolist()
    assert len(set(lengths)) >= 3
    assert set(lengths) <= set(range(4, 9))
    assert adaptive._chunk(False, adaptive.chunk_limit)._cache_size() == 1
    assert counters.exact(state.steps) == 16 * sum(lengths)


def test_a_run_ends_when_its_steps_are_taken(adaptive_run):
    state, metrics = adaptive_run
    valid = np.asarray(metrics["valid"])
    steps = np.asarray(metrics["steps_low"])[valid]
    assert steps[-1] >= 1000 > steps[-2]
    assert counters.exact(state.steps) == steps[-1]
    assert not valid[valid.sum() :].any()
    np.testing.assert_array_equal(np.diff(steps), 16 * np.asarray(metrics["outer/rollout_length"])[valid][1:])


def test_chunk_boundaries_change_no_bit_where_lengths_adapt(adaptive, adaptive_run):
    state = adaptive.init(jax.random.key(3))
    for _ in range(20):
        state, metrics = adaptive.chunk(state, 3)
        if not np.asarray(metrics["valid"]).any():
            break
    assert_equal(state, adaptive_run[0])


def test_members_of_a_population_have_lengths_of_their_own(adaptive, adaptive_run):
    """Each takes the lengths and sees the experience of the seed alone, and stands still once it is done."""
    seeds = [3, 5, 11]
    states, metrics = adaptive(jnp.stack([jax.random.key(seed) for seed in seeds]))
    lengths = np.where(metrics["valid"], metrics["outer/rollout_length"], 0)
    assert len({tuple(row) for row in lengths.tolist()}) == 3
    for member, seed in enumerate(seeds):
        alone, alone_metrics = adaptive_run if seed == 3 else adaptive(jax.random.key(seed))
        valid = np.asarray(alone_metrics["valid"])
        np.testing.assert_array_equal(metrics["valid"][member], valid)
        np.testing.assert_array_equal(lengths[member][valid], np.asarray(alone_metrics["outer/rollout_length"])[valid])
        one = jax.tree.map(lambda leaf, member=member: leaf[member], states)
        assert_equal(one.actors.start, alone.actors.start)
        assert_equal(one.learner, alone.learner, rtol=1e-3, atol=1e-5)


def test_lengths_are_the_same_on_several_devices(adaptive_run):
    state, metrics = adaptive_trainer(count=4)(jax.random.key(3))
    np.testing.assert_array_equal(metrics["outer/rollout_length"], adaptive_run[1]["outer/rollout_length"])
    assert_equal(state.learner, adaptive_run[0].learner, rtol=1e-3, atol=1e-5)


def test_a_fixed_length_is_the_static_case():
    """Lengths of 8 to 8 take the same samples in the same minibatches as the program that knows only 8."""
    algorithm = {"minibatch_size": 32, "schedule": "linear"}
    static, static_metrics = make_trainer(Clock(), algorithm=algorithm)(jax.random.key(3))
    options = AdaptiveBatchConfig(driver="kl", **{**RESTLESS, "minimum": 8})
    traced, metrics = make_trainer(Clock(), algorithm={**algorithm, "adaptive_batch": options})(jax.random.key(3))
    assert_equal(traced.actors.start, static.actors.start)
    assert_equal(traced.learner, static.learner, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(metrics["optimiser/learning_rate"], static_metrics["optimiser/learning_rate"], rtol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"driver": "schedule"},
        {"driver": "behavioural_divergence", "low": 0.01, "high": 0.5},
        {"driver": "kl", "span": "interval", "every": 2},
    ],
)
def test_every_driver_moves_the_length_within_its_limits(options):
    _, metrics = adaptive_trainer(**options)(jax.random.key(3))
    valid = np.asarray(metrics["valid"])
    lengths = np.asarray(metrics["outer/rollout_length"])[valid]
    assert lengths[0] == 4
    assert lengths.min() >= 4
    assert lengths.max() <= 8
    assert len(set(lengths.tolist())) > 1
    if options["driver"] == "schedule":
        share = np.minimum(np.asarray(metrics["steps_low"])[valid] / 1000, 1)
        np.testing.assert_allclose(lengths[1:], np.round(4 + 4 * share)[:-1], atol=1)


def test_the_noise_scale_in_samples_becomes_a_length():
    """Of 16 environments, a scale of 96 samples asks for 6 steps; and each outer step measures a scale of its own."""
    trainer = adaptive_trainer(driver="noise_scale")
    state, metrics = trainer.chunk(trainer.init(jax.random.key(3)), 3)
    assert np.all(np.isfinite(metrics["outer/gradient_variance"][:3]))
    assert np.all(np.asarray(metrics["outer/gradient_variance"][:3]) > 0)
    # So much weight that no further measurement moves the average.
    noise = NoiseScale(jnp.float32(1.0), jnp.float32(96.0), jnp.float32(1e9))
    state, metrics = trainer.chunk(state._replace(outer_loop=state.outer_loop._replace(noise_scale=noise)), 2)
    np.testing.assert_allclose(metrics["outer/noise_scale"][:2], 96.0, rtol=1e-3)
    assert int(metrics["outer/rollout_length"][1]) == 6


def test_an_interval_spans_all_outer_steps_since_the_last_measurement():
    """Of two outer steps' KL the divergence of one update sees the second only."""
    quiet = {"low": 1e-9, "high": 1e9, "smoothing": 1e-6, "every": 2}
    one = adaptive_trainer(**quiet)(jax.random.key(4))[1]["outer/adaptive_divergence"]
    both = adaptive_trainer(**quiet, span="interval")(jax.random.key(4))[1]["outer/adaptive_divergence"]
    assert np.isnan(one[0])
    assert np.isnan(both[0])
    assert both[1] > 1.5 * one[1]


def test_changes_come_about_at_their_steps():
    trainer = make_trainer(Clock(), algorithm={"reference": ReferenceConfig(center_of_mass=1.0)})
    changes = ("algorithm.learning_rate=1e-2@128", "algorithm.reference.center_of_mass=99@256")
    config = replace(trainer.config, changes=changes)
    changed = replace(trainer, config=config, simulation=trainer.simulation._replace(config=config))
    plain, metrics = trainer(jax.random.key(3))[1], changed(jax.random.key(3))[1]
    np.testing.assert_allclose(metrics["optimiser/learning_rate"], [1e-3, 1e-2, 1e-2], rtol=1e-6)
    np.testing.assert_array_equal(metrics["outer/kl_k3"][0], plain["outer/kl_k3"][0])
    np.testing.assert_allclose(metrics["reference/age"][1], plain["reference/age"][1], rtol=1e-6)
    assert metrics["reference/age"][2] > 2 * plain["reference/age"][2]


def test_a_reference_without_age_is_the_policy_itself():
    trainer = make_trainer(Clock(), algorithm={"reference": ReferenceConfig(center_of_mass=0.0)})
    state, metrics = trainer(jax.random.key(3))
    assert_equal(state.learner.learnt.reference.params, state.learner.params)
    np.testing.assert_array_equal(metrics["outer/kl_reference_exact"], np.zeros(3))
    np.testing.assert_array_equal(metrics["reference/age"], np.zeros(3))


def test_as_many_reference_updates_as_optimiser_steps():
    """2 epochs x 4 minibatches x 3 outer steps, at decay 0.9: the weight is the sum of 25 powers."""
    trainer = make_trainer(Clock(), algorithm={"reference": ReferenceConfig(center_of_mass=9.0)})
    state, _ = trainer(jax.random.key(3))
    np.testing.assert_allclose(state.learner.learnt.reference.weight, np.sum(0.9 ** np.arange(25)), rtol=1e-5)


def test_moments_of_advantages_are_kept():
    trainer = make_trainer(Clock(), algorithm={"advantage_center_of_mass": 1.0})
    state, _ = trainer(jax.random.key(3))
    assert isinstance(state.learner.advantage_moments, ppo.AdvantageMoments)
    np.testing.assert_allclose(state.learner.advantage_moments.weight, 128 * (1 + 0.5 + 0.25), rtol=1e-6)


ALL_OFF = MonitorsConfig(kl=False, behavioural_divergence=False, outer_step=False, noise_scale=False)


@pytest.fixture(scope="module")
def unwatched():
    return make_trainer(Clock(), monitors=ALL_OFF, algorithm={"microbatch_size": 16})(jax.random.key(3))


@pytest.mark.parametrize("name", ["kl", "behavioural_divergence", "outer_step", "noise_scale"])
def test_each_monitor_can_be_off_and_learning_does_not_notice(name, unwatched):
    """Which is the same to rounding: the compiler may fuse other operations around what is watched."""
    watching = make_trainer(Clock(), monitors=replace(ALL_OFF, **{name: True}), algorithm={"microbatch_size": 16})
    on, on_metrics = watching(jax.random.key(3))
    off, off_metrics = unwatched
    assert_equal(on.actors.start, off.actors.start)
    assert_equal(on.learner, off.learner, rtol=1e-4, atol=1e-6)
    assert not [metric for metric in off_metrics if metric.startswith("outer/")]
    assert set(on_metrics) - set(off_metrics)


def test_monitors_of_all_states_are_those_of_the_whole_rollout():
    """KL, its standard error, DDR and changed actions of one outer step, against the policies before and after it."""
    trainer = make_trainer(Clock(), monitors=MonitorsConfig(samples=0), algorithm={"learning_rate": 3e-2})
    start = trainer.init(jax.random.key(3))
    before = jax.tree.map(jnp.copy, start.learner.params)
    state = jax.tree.map(jnp.copy, start)
    after, metrics = trainer.chunk(start, 1)

    def policy(params, observation):
        return trainer.network.step(params, (), observation, jnp.zeros(observation.shape[0], bool))[1]

    key = jax.random.split(jax.random.fold_in(state.key, jnp.uint32(0)), 3)[0]
    _, trajectory, _ = collect(trainer.simulation, before, lambda x: x, lambda policy: policy, (), state.actors, key, 8)
    observations = trajectory.observation.reshape(128, -1)
    old, new = policy(before, observations), policy(after.learner.params, observations)
    exact = old.kl(new)
    np.testing.assert_allclose(metrics["outer/kl_exact"][0], jnp.mean(exact), rtol=1e-4)
    np.testing.assert_allclose(metrics["outer/kl_exact_se"][0], jnp.std(exact) / np.sqrt(128), rtol=1e-3)
    action = trajectory.action.reshape(128)
    k3 = divergence.kl_k3(old.log_prob(action), new.log_prob(action))
    np.testing.assert_allclose(metrics["outer/kl_k3"][0], jnp.mean(k3), rtol=1e-3)
    np.testing.assert_allclose(metrics["outer/ddr_k3"][0], 128 / jnp.mean(k3), rtol=1e-3)
    np.testing.assert_allclose(metrics["outer/ddr_exact"][0], 128 / jnp.mean(exact), rtol=1e-3)
    changed = jnp.mean((old.mode() != new.mode()).astype(jnp.float32))
    np.testing.assert_allclose(metrics["outer/behavioural_divergence"][0], changed, atol=1e-6)
    step = jax.tree.map(jnp.subtract, after.learner.params, before)
    length = np.sqrt(sum(float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(step)))
    np.testing.assert_allclose(metrics["outer/step_length"][0], length, rtol=1e-4)


def test_a_sample_of_states_is_the_same_on_any_number_of_devices():
    monitors = MonitorsConfig(samples=32)
    _, metrics = make_trainer(Clock(), count=8, monitors=monitors)(jax.random.key(3))
    _, alone = make_trainer(Clock(), monitors=monitors)(jax.random.key(3))
    _, whole = make_trainer(Clock(), monitors=MonitorsConfig(samples=0))(jax.random.key(3))
    np.testing.assert_allclose(metrics["outer/kl_exact"], alone["outer/kl_exact"], rtol=1e-2)
    error, least = np.asarray(alone["outer/kl_exact_se"]), np.asarray(whole["outer/kl_exact_se"])
    assert error[0] > 1.1 * least[0]
    assert np.all(np.abs(np.asarray(alone["outer/kl_exact"]) - np.asarray(whole["outer/kl_exact"])) < 4 * error)
