"""Curricula on levels whose success rates are known, against brute force in NumPy."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxrl_scale import counters, train
from purejaxrl_scale.advantages import gae
from purejaxrl_scale.config import (
    AlgorithmConfig,
    Config,
    CurriculumConfig,
    DevicesConfig,
    EnvironmentConfig,
    MonitorsConfig,
    NetworkConfig,
)
from purejaxrl_scale.devices import make_mesh
from purejaxrl_scale.environments import levels
from purejaxrl_scale.environments.interface import Box, Discrete, Timestep
from purejaxrl_scale.hyperparameters import from_config
from purejaxrl_scale.outer_loop import curriculum, learnability, level_replay
from purejaxrl_scale.rollout import Trajectory, next_value, stopped
from purejaxrl_scale.runner import checkpoints

RATES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)


class LevelState(NamedTuple):
    level: jax.Array  # i32[]
    time: jax.Array  # i32[]


class Family:
    """Seven kinds of level; whatever is done, an episode of two steps on kind i is solved with probability RATES[i]."""

    name = "family"
    observation_space = Box(np.zeros(2, np.float32), np.full(2, 10.0, np.float32), (2,))
    action_space = Discrete(2)
    max_episode_steps = 2
    cheap_reset = True

    def reset(self, key):
        state = LevelState(jax.random.randint(key, (), 0, len(RATES)), jnp.int32(0))
        return self._observe(state), state

    def step(self, key, state, action):
        new = LevelState(state.level, state.time + 1)
        over = new.time >= 2
        solved = over & (jax.random.uniform(key) < jnp.asarray(RATES)[state.level])
        return Timestep(
            new,
            self._observe(new),
            solved.astype(jnp.float32),
            over,
            jnp.bool_(False),
            {"success": solved.astype(jnp.float32)},
        )

    def _observe(self, state):
        return jnp.stack([state.level.astype(jnp.float32), state.time.astype(jnp.float32)])


class Filtered(Family):
    """Its levels are all of kind 3, and 4 where the key's last bit is set; a level is not the key it is drawn with."""

    def draw(self, keys, names, fresh):
        drawn = jax.random.key_data(jax.vmap(jax.random.fold_in, (0, None))(keys, 7))
        names = jnp.where(fresh[:, None], drawn, names)
        states = LevelState((3 + (names[:, 1] & 1)).astype(jnp.int32), jnp.zeros(len(names), jnp.int32))
        return names, (jax.vmap(self._observe)(states), states)


def make_config(devices=1, num_envs=16, rollout_length=6, exact=False, **options):
    return Config(
        total_steps=16 * 6 * 8,
        environment=EnvironmentConfig(num_envs=num_envs),
        network=NetworkConfig(widths=(8,)),
        algorithm=AlgorithmConfig(
            rollout_length=rollout_length, minibatch_size=num_envs * rollout_length // 2, epochs=1
        ),
        curriculum=CurriculumConfig(
            **{"name": "sfl", "buffer_size": 8, "candidates": 64, "search_length": 20, "search_batch": 32} | options
        ),
        monitors=MonitorsConfig(kl=False, behavioural_divergence=False, outer_step=False, noise_scale=False),
        devices=DevicesConfig(count=devices, exact_reduction=exact),
    )


@functools.cache
def make_trainer(environment=Family, **options):
    """One for equal options, so that the same program is compiled once."""
    config = make_config(**options)
    return train.Trainer(config, train.simulate(config, environment()), make_mesh(config.devices))


def levels_of(names):
    """The kind of each level, i32[B]."""
    return np.asarray(jax.vmap(Family().reset)(jax.random.wrap_key_data(jnp.asarray(names)))[1].level)


def searched(trainer, seed=0):
    state = trainer.init(jax.random.key(seed))
    behaviour = train.behaviour(trainer.config, state)
    key = jax.random.key(5)
    assign = jax.jit(
        lambda: curriculum.assign(trainer.simulation, behaviour, state.curriculum, state.actors, jnp.uint32(0), key)
    )
    return assign()[0], key


class TestSearch:
    def test_equals_brute_force(self):
        """Every candidate played by hand, one step after the other, with the keys that the search promises."""
        trainer = make_trainer()
        found, key = searched(trainer)
        draw_key, play_key = jax.random.split(jax.random.split(key, 3)[2])
        family, names, solved, attempts = Family(), [], [], []
        step = jax.jit(family.step)
        for candidate in range(64):
            name = jax.random.fold_in(draw_key, candidate)
            _, start = family.reset(name)
            state, won, ended = start, 0, 0
            for time in range(20):
                dynamics_key = jax.random.split(jax.random.fold_in(play_key, np.uint32(time)), 3)[1]
                timestep = step(jax.random.fold_in(dynamics_key, candidate), state, 0)
                state = start if timestep.terminated else timestep.state
                won, ended = won + int(timestep.outcome["success"]), ended + int(timestep.terminated)
            names.append(np.asarray(jax.random.key_data(name)))
            solved.append(won)
            attempts.append(ended)
        assert set(attempts) == {10}
        rate = np.array(solved) / np.array(attempts)
        best = np.argsort(-np.round(rate * (1 - rate), 9), kind="stable")[:8]
        np.testing.assert_array_equal(found.name, np.array(names)[best])
        np.testing.assert_array_equal(found.solved, np.array(solved)[best])
        np.testing.assert_array_equal(found.attempts, 10)
        assert counters.exact(found.steps) == 64 * 20

    def test_finds_the_levels_of_middling_success(self):
        """Of thousands of episodes a level, the rates are known well enough that only kinds 0.5 are left."""
        found, _ = searched(make_trainer(search_length=2000, buffer_size=4))
        assert set(levels_of(found.name)) == {RATES.index(0.5)}
        np.testing.assert_allclose(np.asarray(found.solved) / 1000, 0.5, atol=0.08)

    def test_batches_change_nothing(self):
        whole, _ = searched(make_trainer(search_batch=64))
        parts, _ = searched(make_trainer(search_batch=8))
        jax.tree.map(np.testing.assert_array_equal, whole, parts)

    def test_learnability_by_hand(self):
        np.testing.assert_allclose(
            learnability.learnability(jnp.array([0, 1, 3, 4, 0]), jnp.array([4, 4, 4, 4, 0])),
            [0.0, 0.1875, 0.1875, 0.0, 0.0],
        )


def run(trainer, outer_steps, seed=0):
    state = trainer.init(jax.random.key(seed))
    return trainer.chunk(state, outer_steps)


class TestAssignment:
    @pytest.mark.parametrize("name", ["sfl", "plr", "uniform"])
    @pytest.mark.parametrize("devices", [2, 8])
    def test_does_not_depend_on_the_devices(self, name, devices):
        alone, alone_metrics = run(make_trainer(name=name, every=2, online=name == "sfl"), 3)
        state, metrics = run(make_trainer(name=name, every=2, online=name == "sfl", devices=devices), 3)
        jax.tree.map(np.testing.assert_array_equal, alone.actors.levels, state.actors.levels)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), alone.curriculum, state.curriculum)
        np.testing.assert_array_equal(alone_metrics["episode/success_sum"][:3], metrics["episode/success_sum"][:3])

    def test_exact_reduction_gives_the_same_bits(self):
        one, _ = run(make_trainer(exact=True, every=2), 3)
        eight, _ = run(make_trainer(exact=True, every=2, devices=8), 3)
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(one.learner), jax.device_get(eight.learner))
        jax.tree.map(np.testing.assert_array_equal, one.curriculum, eight.curriculum)

    def test_a_share_is_on_the_buffer(self):
        trainer = make_trainer(share=0.25)
        state, _ = run(trainer, 1)
        assert not np.any(np.asarray(state.actors.levels.slot) >= 0)
        state, _ = run(trainer, 2)
        slot = np.asarray(state.actors.levels.slot)
        assert (slot >= 0).sum() == 4
        np.testing.assert_array_equal(state.actors.levels.name[slot >= 0], state.curriculum.name[slot[slot >= 0]])
        kinds = levels_of(state.actors.levels.name)
        np.testing.assert_array_equal(state.actors.start.state.level, kinds)
        np.testing.assert_array_equal(state.actors.first_start.state.level, kinds)

    def test_interleaved_by_hand(self):
        np.testing.assert_array_equal(levels.interleaved(0.5, 6), [False, True] * 3)
        assert [int(levels.interleaved(share, 1000).sum()) for share in (0.0, 0.3, 0.7, 1.0)] == [0, 300, 700, 1000]

    def test_draws_follow_the_weights(self):
        weight = jnp.array([0.0, 1.0, 3.0, 0.0])
        places = levels.choose(weight, jax.random.key(0), 40_000)
        np.testing.assert_allclose(np.bincount(places, minlength=4) / 40_000, [0, 0.25, 0.75, 0], atol=0.01)
        even = levels.choose(jnp.zeros(4), jax.random.key(1), 40_000)
        np.testing.assert_allclose(np.bincount(even, minlength=4) / 40_000, 0.25, atol=0.01)

    def test_a_filter_is_asked_for_fresh_levels_alone(self):
        """The names are proposed ones, and an episode that ends begins again at its own."""
        state, _ = run(make_trainer(Filtered, share=0.5), 2)
        names = np.asarray(state.actors.levels.name)
        np.testing.assert_array_equal(state.actors.start.state.level, 3 + (names[:, 1] & 1))
        fresh = state.actors.levels.slot < 0
        assert fresh.sum() == 8
        key = jax.random.fold_in(jax.random.key(0), 1)
        collect_key = jax.random.split(key, 3)[0]
        fresh_key = jax.random.split(jax.random.fold_in(collect_key, jnp.uint32(0xFFFFFFFF)), 3)[1]
        expected = [
            jax.random.key_data(jax.random.fold_in(jax.random.fold_in(fresh_key, row), 7))
            for row in np.flatnonzero(fresh)
        ]
        np.testing.assert_array_equal(names[fresh], np.array(expected))

    def test_searches_come_at_their_time_and_are_counted_apart(self):
        _, metrics = run(make_trainer(every=3), 7)
        steps = (np.asarray(metrics["curriculum/steps_high"][:7]).astype(np.int64) << 32) + np.asarray(
            metrics["curriculum/steps_low"][:7]
        )
        np.testing.assert_array_equal(steps, 64 * 20 * np.array([1, 1, 1, 2, 2, 2, 3]))
        np.testing.assert_array_equal(metrics["steps_low"][:7], 96 * np.arange(1, 8))

    def test_a_population_searches_as_its_members_do(self):
        together, _ = make_trainer(every=2).chunk(
            make_trainer(every=2).init(jax.vmap(jax.random.key)(jnp.arange(2))), 3
        )
        for seed in range(2):
            alone, _ = run(make_trainer(every=2), 3, seed)
            np.testing.assert_array_equal(together.curriculum.name[seed], alone.curriculum.name)
            np.testing.assert_array_equal(together.actors.levels.slot[seed], alone.actors.levels.slot)


class TestEpisodes:
    def test_new_levels_begin_with_the_outer_step(self):
        """Rollouts of 3 steps end within an episode of 2; the next one starts at time 0 all the same."""
        trainer = make_trainer(rollout_length=3)
        state, metrics = run(trainer, 2)
        np.testing.assert_array_equal(metrics["episode/count"][:2], 16)
        np.testing.assert_array_equal(state.actors.start.state.time, 1)

    def test_or_after_the_episode(self):
        trainer = make_trainer(rollout_length=3, new_levels="episode")
        before, _ = run(trainer, 1)
        state, metrics = run(trainer, 2)
        np.testing.assert_array_equal(metrics["episode/count"][:2], [16, 32])
        np.testing.assert_array_equal(state.actors.start.state.time, 0)
        np.testing.assert_array_equal(state.actors.start.state.level, levels_of(state.actors.levels.name))
        assert np.any(before.actors.start.state.level != state.actors.start.state.level)


class TestOnline:
    @pytest.mark.parametrize(("new_levels", "length"), [("outer_step", 6), ("episode", 3)])
    def test_training_episodes_count_on_their_levels(self, new_levels, length):
        """Against a count by hand over the steps of each outer step's trajectory."""
        trainer = make_trainer(online=True, new_levels=new_levels, rollout_length=length, every=100)
        config, simulation = trainer.config, trainer.simulation
        state = trainer.init(jax.random.key(0))
        attempts = solved = None
        playing = np.full(16, -1)
        for outer_step in range(5):
            key = jax.random.split(jax.random.fold_in(state.key, state.outer_step), 3)[0]
            known, actors = curriculum.assign(
                simulation,
                train.behaviour(config, state),
                state.curriculum,
                state.actors,
                state.outer_step,
                jax.random.fold_in(key, jnp.uint32(0xFFFFFFFF)),
            )
            if outer_step == 0:
                attempts, solved = np.array(known.attempts), np.array(known.solved)
                # Fresh levels all, of which nothing is known; and so are those that go on into the next outer step.
                state, _ = trainer.chunk(state, 1)
                continue
            ready = state._replace(actors=actors)
            _, trajectory, _ = train.roll_out(simulation, ready, key, length)
            slot = np.asarray(actors.levels.slot)
            for env in range(16):
                now = slot[env] if new_levels == "outer_step" else playing[env]
                for time in range(length):
                    if trajectory.terminated[time, env]:
                        if now >= 0:
                            attempts[now] += 1
                            solved[now] += int(trajectory.success[time, env])
                        now = slot[env]
                playing[env] = now
            state, _ = trainer.chunk(state, 1)
            np.testing.assert_array_equal(state.curriculum.attempts, attempts)
            np.testing.assert_array_equal(state.curriculum.solved, solved)
        assert attempts.sum() > 80


class TestLevelReplay:
    def test_probabilities_by_hand(self):
        probability = level_replay.replay_probability(
            jnp.array([0.2, 0.9, -1.0, 0.5]), jnp.array([3, 1, 50, 0], jnp.uint32), temperature=0.5, staleness=0.25
        )
        by_rank = np.array([1 / 9, 1, 0, 1 / 4]) / (1 / 9 + 1 + 1 / 4)
        by_age = np.array([3, 1, 0, 0]) / 4
        np.testing.assert_allclose(probability, 0.75 * by_rank + 0.25 * by_age, rtol=1e-6)

    def test_keeps_the_best_of_old_and_fresh(self):
        trainer = make_trainer(name="plr", share=0.5)
        config, simulation = trainer.config, trainer.simulation
        hyperparameters = from_config(config)
        state = trainer.init(jax.random.key(0))
        known = {}
        for outer_step in range(3):
            key = jax.random.split(jax.random.fold_in(state.key, state.outer_step), 3)[0]
            _, actors = curriculum.assign(
                simulation,
                train.behaviour(config, state),
                state.curriculum,
                state.actors,
                state.outer_step,
                jax.random.fold_in(key, jnp.uint32(0xFFFFFFFF)),
            )
            _, trajectory, _ = train.roll_out(simulation, state._replace(actors=actors), key, 6)
            score = np.asarray(level_replay.value_loss(hyperparameters, trajectory))
            played = {}
            for name, one in zip(np.asarray(actors.levels.name), score, strict=True):
                played.setdefault(tuple(name), []).append(one)
            known |= {name: np.mean(scores) for name, scores in played.items()}
            known = dict(sorted(known.items(), key=lambda pair: -pair[1])[:8])
            assert bool(np.any(np.asarray(actors.levels.slot) >= 0)) == (outer_step > 0)
            state, _ = trainer.chunk(state, 1)
            assert {tuple(name) for name in np.asarray(state.curriculum.name)} == set(known)
            np.testing.assert_allclose(state.curriculum.score, list(known.values()), rtol=1e-5)

    def test_value_loss_is_the_mean_positive_advantage(self):
        numbers = from_config(make_config())
        rng = np.random.default_rng(0)
        shape = (5, 3)
        trajectory = Trajectory(**dict.fromkeys(Trajectory._fields, ()))._replace(
            reward=jnp.asarray(rng.normal(size=shape), jnp.float32),
            value=jnp.asarray(rng.normal(size=shape), jnp.float32),
            final_value=jnp.zeros(shape),
            last_value=jnp.asarray(rng.normal(size=3), jnp.float32),
            terminated=jnp.asarray(rng.random(shape) < 0.2),
            truncated=jnp.zeros(shape, bool),
            valid=jnp.asarray(rng.random(shape) < 0.8),
            length=5,
        )
        advantage = np.asarray(
            gae(
                trajectory.reward,
                trajectory.value,
                next_value(trajectory),
                trajectory.terminated,
                stopped(trajectory),
                discount=numbers.discount,
                trace_decay=numbers.trace_decay,
            )
        )
        valid = np.asarray(trajectory.valid)
        expected = [np.maximum(advantage[valid[:, env], env], 0).mean() for env in range(3)]
        np.testing.assert_allclose(level_replay.value_loss(numbers, trajectory), expected, rtol=1e-5)


@pytest.mark.parametrize("options", [{"every": 2, "online": True}, {"name": "plr"}], ids=["sfl", "plr"])
def test_going_on_from_a_checkpoint_changes_no_bit(options, tmp_path):
    """With a buffer in flight."""
    trainer = make_trainer(**options)
    whole, _ = run(trainer, 5)
    half, _ = run(trainer, 3)
    saver = checkpoints.Checkpoints(tmp_path, keep=1)
    saver.save(3, checkpoints.to_host(half), {})
    saver.wait()
    saver.close()
    template = trainer.init(jax.random.key(9))
    state, _ = trainer.chunk(checkpoints.from_host(template, checkpoints.restore(tmp_path, 3).leaves), 2)
    np.testing.assert_equal(checkpoints.to_host(state), checkpoints.to_host(whole))


def test_other_runs_have_no_curriculum():
    trainer = make_trainer(name="none")
    state = jax.eval_shape(trainer.init, jax.random.key(0))
    assert state.curriculum == ()
    assert state.actors.levels == ()
