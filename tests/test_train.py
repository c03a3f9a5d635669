"""The outer step as a whole: chunks, populations, devices, ratios, quarantine."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxrl_scale import config_io, counters, devices, hyperparameters, train
from purejaxrl_scale.algorithms import ppo
from purejaxrl_scale.config import (
    AlgorithmConfig,
    Config,
    DevicesConfig,
    EnvironmentConfig,
    NetworkConfig,
)
from purejaxrl_scale.networks import make_actor_critic
from purejaxrl_scale.rollout import Simulation, Trajectory, collect
from purejaxrl_scale.train import Trainer
from tests.probes import Clock


def make_trainer(probe, count=1, **groups) -> Trainer:
    """A trainer on a test environment: 16 environments x 8 steps, 4 minibatches of 32, 2 epochs, 3 outer steps."""
    config = Config(
        total_steps=3 * 128,
        environment=EnvironmentConfig(num_envs=16, **groups.pop("environment", {})),
        network=NetworkConfig(**{"widths": (16,), **groups.pop("network", {})}),
        algorithm=AlgorithmConfig(
            **{"rollout_length": 8, "minibatch_size": 32, "epochs": 2, "learning_rate": 1e-3}
            | groups.pop("algorithm", {})
        ),
        devices=DevicesConfig(count=count),
        **groups,
    )
    network = make_actor_critic(config.network, probe.observation_space, probe.action_space)
    return Trainer(config, Simulation(probe, network, config), devices.make_mesh(config.devices), chunk_limit=4)


def assert_equal(left, right, **tolerance):
    """Leaf by leaf; to the bit where no tolerance is given."""

    def compare(a, b):
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        if tolerance and jnp.issubdtype(a.dtype, jnp.floating):
            np.testing.assert_allclose(a, b, **tolerance)
        else:
            np.testing.assert_array_equal(a, b)

    jax.tree.map(compare, left, right)


@pytest.fixture(scope="module")
def clock_trainer():
    return make_trainer(Clock())


@pytest.fixture(scope="module")
def whole_run(clock_trainer):
    return clock_trainer(jax.random.key(3))


def test_chunk_boundaries_change_no_bit(clock_trainer, whole_run):
    state = clock_trainer.init(jax.random.key(3))
    rows = []
    for outer_steps in (1, 2):
        state, metrics = clock_trainer.chunk(state, outer_steps)
        rows.append(jax.tree.map(lambda leaf, n=outer_steps: np.asarray(leaf[:n]), metrics))
    assert_equal(state, whole_run[0])
    assert_equal(jax.tree.map(lambda *parts: np.concatenate(parts), *rows), whole_run[1])


def test_counters_and_episodes(whole_run):
    state, metrics = whole_run
    assert counters.exact(state.steps) == 3 * 128
    assert int(state.outer_step) == 3
    np.testing.assert_array_equal(metrics["steps_low"], [128, 256, 384])
    # Episodes of 5 steps in rollouts of 8: 1, then 2, then 1 of each environment end in a rollout.
    np.testing.assert_array_equal(metrics["episode/count"], [16, 32, 16])
    np.testing.assert_array_equal(metrics["episode/return_sum"], [80, 160, 80])
    np.testing.assert_array_equal(metrics["episode/success_sum"], [16, 32, 16])


def test_a_population_member_is_the_seed_alone(clock_trainer, whole_run):
    """Its experience is the same to the bit, its parameters to the rounding of differently ordered sums."""
    keys = jnp.stack([jax.random.key(7), jax.random.key(3), jax.random.key(9)])
    state, metrics = clock_trainer(keys)
    member = jax.tree.map(lambda leaf: leaf[1], state)
    assert_equal(member.actors.start, whole_run[0].actors.start)
    assert_equal(member.learner, whole_run[0].learner, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(metrics["episode/return_sum"][1], whole_run[1]["episode/return_sum"])
    params = jax.tree.leaves(state.learner.params)[1]
    assert not np.array_equal(params[0], params[1])


def test_a_population_may_differ_in_hyperparameters(clock_trainer, whole_run):
    keys = jnp.stack([jax.random.key(3), jax.random.key(3)])
    numbers = hyperparameters.from_config(clock_trainer.config)
    numbers = numbers._replace(learning_rate=jnp.array([1e-3, 1e-2]))
    state, _ = clock_trainer(keys, numbers)
    same = jax.tree.map(lambda leaf: leaf[0], state.learner)
    assert_equal(same, whole_run[0].learner, rtol=1e-4, atol=1e-6)
    assert not np.array_equal(*jax.tree.leaves(state.learner.params)[1])


@pytest.mark.parametrize("count", [2, 8])
def test_any_number_of_devices_sees_the_same_experience(count, whole_run):
    trainer = make_trainer(Clock(), count=count)
    state, metrics = trainer(jax.random.key(3))
    # The first rollout is the same to the bit; afterwards sums over devices differ in their order.
    assert_equal(state.actors.start, whole_run[0].actors.start, rtol=1e-5)
    assert_equal(state.learner, whole_run[0].learner, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(metrics["episode/return_sum"], whole_run[1]["episode/return_sum"])


def test_a_recurrent_population_on_several_devices():
    network = {"recurrent": True, "hidden_size": 8, "segment_length": 4}
    keys = jnp.stack([jax.random.key(7), jax.random.key(3)])
    several, _ = make_trainer(Clock(), count=4, network=network)(keys)
    alone, _ = make_trainer(Clock(), network=network)(keys[1])
    member = jax.tree.map(lambda leaf: leaf[1], several)
    assert_equal(member.actors.start, alone.actors.start, rtol=1e-5)
    assert_equal(member.learner, alone.learner, rtol=1e-4, atol=1e-5)


def test_the_chunk_compiles_once(clock_trainer):
    state = clock_trainer.init(jax.random.key(0))
    function = clock_trainer._chunk(False, clock_trainer.chunk_limit)
    before = function._cache_size()
    for outer_steps in (1, 2, 1):
        state, _ = clock_trainer.chunk(state, outer_steps)
    assert function._cache_size() - before <= 1
    assert function._cache_size() == 1


def test_blocks_of_environments_see_the_same_experience(whole_run):
    """Of two environments each, whose products round otherwise; a recurrent memory and resets go by block too."""
    state, metrics = make_trainer(Clock(), environment={"block_size": 2})(jax.random.key(3))
    assert_equal(state.actors.start, whole_run[0].actors.start, rtol=1e-5)
    assert_equal(state.learner, whole_run[0].learner, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(metrics["episode/return_sum"], whole_run[1]["episode/return_sum"])
    network = {"recurrent": True, "hidden_size": 8, "segment_length": 4}
    environment = {"autoreset": "first_state", "staggered": True}
    whole, _ = make_trainer(Clock(), network=network, environment=environment)(jax.random.key(3))
    blocks, _ = make_trainer(Clock(), network=network, environment=environment | {"block_size": 1})(jax.random.key(3))
    assert_equal(blocks.actors, whole.actors, rtol=1e-4, atol=1e-5)
    assert_equal(blocks.learner, whole.learner, rtol=1e-4, atol=1e-5)


def test_the_policy_acts_on_what_is_stored():
    """Pendulum's real observations rounded to bfloat16: value and log-probability are those of the rounded ones."""
    config = Config(
        total_steps=128,
        environment=EnvironmentConfig(name="gymnax/Pendulum-v1", num_envs=16, observation_storage="bfloat16"),
        network=NetworkConfig(widths=(16,)),
        algorithm=AlgorithmConfig(rollout_length=8, minibatch_size=128),
        devices=DevicesConfig(count=1),
    )
    trainer = train.make_train(config)
    state = trainer.init(jax.random.key(0))
    normalise = partial(train.normalise, ())
    _, trajectory, _ = collect(
        trainer.simulation,
        state.learner.params,
        normalise,
        lambda policy: policy,
        (),
        state.actors,
        jax.random.key(1),
        8,
    )
    assert trajectory.observation.dtype == jnp.bfloat16
    policy, value = trainer.simulation.unroll((), state.learner.params, (), trajectory.observation, trajectory.is_first)
    np.testing.assert_allclose(value, trajectory.value, rtol=0, atol=1e-6)
    np.testing.assert_allclose(policy.log_prob(trajectory.action), trajectory.log_prob, rtol=0, atol=1e-6)
    assert np.any(np.asarray(state.actors.start.observation) != np.asarray(trajectory.observation[0], np.float32))


@pytest.mark.parametrize(
    "network",
    [{}, {"recurrent": True, "hidden_size": 8}, {"recurrent": True, "hidden_size": 8, "segment_length": 4}],
    ids=["mlp", "gru", "gru in segments"],
)
def test_the_first_ratio_is_one(network):
    """One epoch of one minibatch: the only step sees the behaviour policy itself, with normalisation on."""
    trainer = make_trainer(
        Clock(length=3),
        network=network,
        environment={"observation_normalisation": True},
        algorithm={"epochs": 1, "minibatch_size": 128, "learning_rate": 1e-2},
    )
    simulation, state = trainer.simulation, trainer.init(jax.random.key(0))

    @jax.jit
    def rollout(learner, actors):
        normalise = partial(train.normalise, learner.observation_moments)
        return collect(simulation, learner.params, normalise, lambda policy: policy, (), actors, jax.random.key(5), 8)

    for _ in range(3):
        learner = state.learner
        normalise = partial(train.normalise, learner.observation_moments)
        _, trajectory, _ = rollout(learner, state.actors)
        segment = trainer.config.segment_length
        if trainer.network.recurrent:
            log_prob = []
            for number in range(8 // segment):
                part = slice(number * segment, (number + 1) * segment)
                policy, _ = trainer.network.unroll(
                    learner.params,
                    jax.tree.map(lambda leaf, n=number: leaf[n], trajectory.memory),
                    normalise(trajectory.observation[part]),
                    trajectory.is_first[part],
                )
                log_prob.append(policy.log_prob(trajectory.action[part]))
            log_prob = jnp.concatenate(log_prob)
        else:
            flat = normalise(trajectory.observation.reshape(128, -1))
            _, policy, _ = trainer.network.step(learner.params, (), flat, trajectory.is_first.reshape(128))
            log_prob = policy.log_prob(trajectory.action.reshape(128)).reshape(8, 16)
        assert float(jnp.max(jnp.abs(jnp.exp(log_prob - trajectory.log_prob) - 1))) <= 3e-7
        state, metrics = trainer.chunk(state, 1)
        assert float(metrics["policy/clip_fraction"][0]) == 0.0
        assert abs(float(metrics["policy/kl_k3"][0])) < 1e-7


def test_truncation_bootstraps_from_the_final_observation():
    """The critic is read at the observation before the reset (time 5), not at the next episode's first (time 0)."""
    trainer = make_trainer(Clock(length=5))
    state = trainer.init(jax.random.key(0))
    simulation = trainer.simulation
    _, trajectory, _ = collect(
        simulation, state.learner.params, lambda x: x, lambda policy: policy, (), state.actors, jax.random.key(1), 8
    )
    at_end = np.asarray(trajectory.truncated)
    assert at_end.sum() == 16
    final = jnp.stack([jnp.full(16, 5.0), trajectory.observation[4, :, 1]], axis=-1)
    _, _, expected = trainer.network.step(state.learner.params, (), final, jnp.zeros(16, bool))
    np.testing.assert_allclose(trajectory.final_value[4], expected, rtol=1e-6)
    assert not np.allclose(expected, trajectory.value[5])
    assert np.all(np.asarray(trajectory.final_value)[~at_end] == 0)


@pytest.mark.parametrize("mode", ["fresh", "pool", "first_state"])
def test_broken_physics_is_kept_out(mode):
    trainer = make_trainer(
        Clock(length=5, breaks_at=3),
        environment={
            "autoreset": mode,
            "pool_size": 8,
            "observation_normalisation": True,
            "reward_normalisation": True,
        },
    )
    state, metrics = trainer(jax.random.key(0))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(state.learner))
    assert np.all(metrics["environment/nan_resets"] > 0)
    assert np.all(metrics["environment/nan_resets"] <= metrics["environment/resets"])
    # Episodes that broke are not logged, and the others have return 5.
    np.testing.assert_array_equal(metrics["episode/return_sum"], 5 * metrics["episode/count"])
    assert float(state.learner.observation_moments.mean[0]) <= 5


def test_a_broken_step_says_nothing_about_those_before_it():
    """V = 10, r = 0.1, 0.1, then NaN physics, γ = 0.99: δ = 0.1 + 9.9 - 10 = 0, and so are the advantages."""

    def column(*values):
        return jnp.array(values)[:, None]

    trajectory = Trajectory(**dict.fromkeys(Trajectory._fields, ()))._replace(
        value=column(10.0, 10.0, 10.0, 4.0),
        final_value=jnp.zeros((4, 1)),
        last_value=jnp.array([4.0]),
        terminated=column(False, False, True, False),
        truncated=column(False, False, False, False),
        valid=column(True, True, False, True),
        length=4,
    )
    numbers = hyperparameters.from_config(Config())
    batch = ppo.estimate(Config(), numbers, trajectory, column(0.1, 0.1, 0.0, 1.0))
    np.testing.assert_allclose(batch.advantage[:, 0], [0.0, 0.0, 0.0, 0.96], atol=1e-6)


def test_staggered_starts_spread_phases_and_are_not_logged():
    trainer = make_trainer(Clock(length=7), environment={"staggered": True})
    state, metrics = trainer(jax.random.key(0))
    assert len(set(np.asarray(state.actors.start.state["time"]).tolist())) > 2
    # Whatever is logged is a whole episode of 7 steps.
    np.testing.assert_array_equal(metrics["episode/length_sum"], 7 * metrics["episode/count"])
    assert metrics["episode/count"].sum() > 0
    assert int(jnp.max(state.actors.countdown)) == -1


def test_reward_normalisation_leaves_logged_returns_raw():
    plain = make_trainer(Clock())(jax.random.key(0))[1]
    scaled = make_trainer(Clock(), environment={"reward_normalisation": True, "reward_scale": 7.0})
    state, metrics = scaled(jax.random.key(0))
    np.testing.assert_array_equal(metrics["episode/return_sum"], plain["episode/return_sum"])
    assert counters.exact(state.learner.return_moments.samples) == 384
    assert float(state.learner.return_moments.variance) > 1


def test_a_traced_number_and_its_field_agree():
    """Every config field marked traced is a hyperparameter of the training state, and none is missing."""
    marked = [name.rpartition(".")[2] for name, field in config_io.fields().items() if field.traced]
    assert sorted(marked) == sorted(hyperparameters.Hyperparameters._fields)


def test_learning_rate_of_the_last_step_is_not_zero():
    trainer = make_trainer(Clock(), algorithm={"schedule": "linear"})
    _, metrics = trainer(jax.random.key(0))
    steps = 3 * 8
    expected = 1e-3 * (1 - np.arange(steps) / steps).reshape(3, 8).mean(1)
    np.testing.assert_allclose(metrics["optimiser/learning_rate"], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("total_steps", "schedule"), [(2**31, "linear"), (10_737_418_240, "warmup_cosine"), (10**15, "linear")]
)
def test_runs_longer_than_an_int32_count(total_steps, schedule):
    """Both ends of a long run: it starts, and its last optimiser step still has a rate above 0."""
    trainer = make_trainer(Clock(), algorithm={"schedule": schedule})
    config = replace(trainer.config, total_steps=total_steps)
    trainer = replace(trainer, config=config, simulation=trainer.simulation._replace(config=config))
    state = trainer.init(jax.random.key(0))
    near_end = jax.tree.map(jnp.copy, state)._replace(steps=counters.init(config.actual_steps - config.batch_size))
    first, last = (float(trainer.chunk(start, 1)[1]["optimiser/learning_rate"][0]) for start in (state, near_end))
    np.testing.assert_allclose(first, 1e-3 if schedule == "linear" else 1e-4, rtol=1e-5)
    # The mean over the last outer step's 8 optimiser steps: 8/8, 7/8, ... 1/8 of its share of the run.
    share = np.arange(1, 9) / 8 * config.batch_size / config.actual_steps
    expected = share if schedule == "linear" else np.sin(0.5 * np.pi * share / 0.9) ** 2
    np.testing.assert_allclose(last, 1e-3 * expected.mean(), rtol=1e-4)


def test_microbatches_change_neither_the_schedule_nor_what_is_learnt():
    """Schedules count optimiser steps; four microbatches of 8 are one minibatch of 32, and 24 leaves a partial one."""
    runs = [
        make_trainer(Clock(), algorithm={"schedule": "linear", "microbatch_size": size})(jax.random.key(0))
        for size in (0, 8, 24)
    ]
    for state, metrics in runs[1:]:
        np.testing.assert_array_equal(metrics["optimiser/learning_rate"], runs[0][1]["optimiser/learning_rate"])
        assert_equal(state.learner, runs[0][0].learner, rtol=1e-4, atol=1e-6)


def test_no_host_callback_in_the_training_function(clock_trainer):
    state = clock_trainer.init(jax.random.key(0))
    assert "callback" not in clock_trainer.lower_chunk(state).as_text()


def test_impossible_configs_are_refused_before_anything_is_made():
    with pytest.raises(ValueError, match=r"minibatch_size"):
        train.make_train(Config(algorithm=AlgorithmConfig(minibatch_size=1000)))


def test_experience_does_not_depend_on_the_number_of_environments():
    """Environment i of 16 and environment i of 32 begin alike: keys are folded from global indices."""
    small = make_trainer(Clock()).init(jax.random.key(4))
    large = make_trainer(Clock())
    config = replace(large.config, environment=replace(large.config.environment, num_envs=32))
    large = replace(large, config=config, simulation=large.simulation._replace(config=config)).init(jax.random.key(4))
    np.testing.assert_array_equal(small.actors.start.state["mark"], large.actors.start.state["mark"][:16])
