"""Distributions against numbers worked out by hand, float64 NumPy, and distrax."""

import math

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from purejaxrl_scale.environments.interface import Box, Discrete, MultiDiscrete
from purejaxrl_scale.networks import Categorical, EpsilonGreedy, Gaussian, MultiCategorical, TanhGaussian

SIZES = (3, 3, 2)


def logits_of(*probabilities: float) -> jax.Array:
    return jnp.log(jnp.array([probabilities], jnp.float32))


def normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def examples(*batch: int) -> dict:
    return {
        "categorical": Categorical(2 * normal(0, *batch, 5)),
        "multi_categorical": MultiCategorical(2 * normal(1, *batch, sum(SIZES)), SIZES),
        "gaussian": Gaussian(normal(2, *batch, 3), 0.5 * normal(3, *batch, 3)),
        "tanh_gaussian": TanhGaussian(normal(2, *batch, 3), 0.5 * normal(3, *batch, 3)),
    }


KINDS = list(examples(1))


def keys_for(seed: int, *batch: int) -> jax.Array:
    return jax.random.split(jax.random.key(seed), batch)


class TestNumbers:
    def test_categorical_kl_has_the_direction_of_its_name(self):
        p, q = Categorical(logits_of(0.5, 0.5)), Categorical(logits_of(0.6, 0.4))
        np.testing.assert_allclose(p.kl(q), [0.0204110], atol=1e-6)
        np.testing.assert_allclose(q.kl(p), [0.0201355], atol=1e-6)

    def test_categorical_log_prob_and_entropy(self):
        p = Categorical(logits_of(0.2, 0.3, 0.5))
        np.testing.assert_allclose(p.log_prob(jnp.array([1])), [math.log(0.3)], rtol=1e-6)
        np.testing.assert_allclose(p.entropy(), [1.0296530], rtol=1e-6)
        assert p.mode().tolist() == [2]

    def test_multi_categorical_adds_its_components(self):
        p = MultiCategorical(jnp.concatenate([logits_of(0.2, 0.3, 0.5), logits_of(0.9, 0.1)], axis=1), (3, 2))
        q = MultiCategorical(jnp.concatenate([logits_of(0.2, 0.3, 0.5), logits_of(0.5, 0.5)], axis=1), (3, 2))
        np.testing.assert_allclose(p.log_prob(jnp.array([[2, 1]])), [math.log(0.05)], rtol=1e-6)
        np.testing.assert_allclose(p.entropy(), [1.0296530 + 0.3250830], rtol=1e-6)
        np.testing.assert_allclose(p.kl(q), [math.log(2) - 0.3250830], rtol=1e-5)
        assert p.mode().tolist() == [[2, 0]]

    def test_gaussian(self):
        p = Gaussian(jnp.array([[0.0, 1.0]]), jnp.log(jnp.array([[1.0, 2.0]])))
        q = Gaussian(jnp.array([[0.5, 1.0]]), jnp.log(jnp.array([[1.0, 1.0]])))
        # log N(1.7; 0, 1) + log N(3; 1, 2); the sample may lie outside any bounds.
        expected = -0.5 * 1.7**2 - 0.5 - math.log(2) - math.log(2 * math.pi)
        np.testing.assert_allclose(p.log_prob(jnp.array([[1.7, 3.0]])), [expected], rtol=1e-6)
        np.testing.assert_allclose(p.entropy(), [math.log(2 * math.pi * math.e) + math.log(2)], rtol=1e-6)
        np.testing.assert_allclose(p.kl(q), [0.125 + (4 - 1) / 2 - math.log(2)], rtol=1e-6)

    def test_gaussian_kl_of_close_policies_keeps_its_digits(self):
        p = Gaussian(jnp.zeros((1, 1)), jnp.full((1, 1), 1e-4))
        q = Gaussian(jnp.zeros((1, 1)), jnp.zeros((1, 1)))
        np.testing.assert_allclose(p.kl(q), [1e-8], rtol=2e-2)

    def test_tanh_gaussian_scores_the_squashed_action(self):
        mean, std, u = 0.3, 0.7, 0.9
        action = math.tanh(u)
        expected = scipy.stats.norm.logpdf(math.atanh(action), mean, std) - math.log(1 - action**2)
        p = TanhGaussian(jnp.array([[mean]]), jnp.log(jnp.array([[std]])))
        np.testing.assert_allclose(p.log_prob(jnp.array([[u]])), [expected], rtol=1e-6)

    def test_tanh_gaussian_density_integrates_to_one(self):
        edge = np.linspace(-9, 9, 20_001)
        p = TanhGaussian(jnp.full((20_001, 1), 0.4), jnp.full((20_001, 1), -0.3))
        density = np.exp(np.asarray(p.log_prob(jnp.array(edge)[:, None]), np.float64))
        np.testing.assert_allclose(np.trapezoid(density, np.tanh(edge)), 1.0, atol=1e-4)


class TestAgainstDistrax:
    @pytest.mark.parametrize("kind", ["categorical", "multi_categorical", "gaussian"])
    def test_log_prob_entropy_and_kl(self, kind):
        ours, other = examples(64)[kind], jax.tree.map(lambda leaf: leaf * 0.5 + 0.1, examples(64)[kind])
        action = ours.sample(keys_for(9, 64))
        with jax.numpy_rank_promotion("allow"):
            theirs, their_other = oracle(ours), oracle(other)
            parts = action.T if kind == "multi_categorical" else [action]
            log_prob = sum(d.log_prob(part) for d, part in zip(theirs, parts, strict=True))
            entropy = sum(d.entropy() for d in theirs)
            kl = sum(d.kl_divergence(o) for d, o in zip(theirs, their_other, strict=True))
        np.testing.assert_allclose(ours.log_prob(action), log_prob, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(ours.entropy(), entropy, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(ours.kl(other), kl, rtol=1e-4, atol=1e-5)

    def test_tanh_gaussian_log_prob(self):
        ours = examples(64)["tanh_gaussian"]
        u = ours.sample(keys_for(9, 64))
        with jax.numpy_rank_promotion("allow"):
            theirs = distrax.Transformed(
                distrax.MultivariateNormalDiag(ours.mean, jnp.exp(ours.log_std)), distrax.Block(distrax.Tanh(), 1)
            )
            inner = theirs.distribution.log_prob(u) - theirs.bijector.forward_log_det_jacobian(u)
        np.testing.assert_allclose(ours.log_prob(u), inner, rtol=1e-5, atol=1e-5)


def oracle(ours) -> list:
    if isinstance(ours, Categorical):
        return [distrax.Categorical(logits=ours.logits)]
    if isinstance(ours, MultiCategorical):
        ends = np.cumsum(ours.sizes)
        return [distrax.Categorical(logits=part) for part in jnp.split(ours.logits, ends[:-1], axis=-1)]
    return [distrax.MultivariateNormalDiag(ours.mean, jnp.exp(ours.log_std))]


class TestSampling:
    def test_categorical_frequencies(self):
        probabilities, draws = np.array([0.1, 0.2, 0.05, 0.65]), 20_000
        p = Categorical(jnp.broadcast_to(logits_of(*probabilities), (draws, 4)))
        action = jax.jit(p.sample)(keys_for(1, draws))
        counts = np.bincount(action, minlength=4)
        assert action.dtype == jnp.int32
        assert scipy.stats.chisquare(counts, probabilities * draws).pvalue > 0.01

    def test_multi_categorical_components_are_independent(self):
        draws = 20_000
        logits = jnp.concatenate([logits_of(0.2, 0.3, 0.5), logits_of(0.6, 0.4)], axis=1)
        p = MultiCategorical(jnp.broadcast_to(logits, (draws, 5)), (3, 2))
        action = np.asarray(jax.jit(p.sample)(keys_for(2, draws)))
        counts = np.bincount(action[:, 0] * 2 + action[:, 1], minlength=6)
        expected = np.outer([0.2, 0.3, 0.5], [0.6, 0.4]).ravel() * draws
        assert scipy.stats.chisquare(counts, expected).pvalue > 0.01

    def test_impossible_choices_are_never_made(self):
        logits = jnp.broadcast_to(jnp.array([[-jnp.inf, 0.3, -jnp.inf, -0.7, 0.1, -jnp.inf, -jnp.inf]]), (20_000, 7))
        p = Categorical(logits)
        action = np.asarray(p.sample(keys_for(3, 20_000)))
        assert set(action) == {1, 3, 4}
        gradient = jax.grad(lambda x: jnp.sum(Categorical(x).entropy() + Categorical(x).log_prob(action)))(logits)
        assert np.isfinite(gradient).all()

    def test_gaussian_moments(self):
        draws = 20_000
        p = Gaussian(jnp.full((draws, 2), 1.5), jnp.full((draws, 2), math.log(0.5)))
        sample = np.asarray(p.sample(keys_for(4, draws)))
        assert scipy.stats.kstest(sample[:, 0], "norm", (1.5, 0.5)).pvalue > 0.01
        assert abs(np.corrcoef(sample.T)[0, 1]) < 0.03

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_row_depends_on_its_own_key_only(self, kind):
        keys, p = keys_for(5, 8), examples(8)[kind]
        sample = jax.jit(p.sample)(keys)
        alone = jax.tree.map(lambda leaf: leaf[3:4], p).sample(keys[3:4])
        others = jax.random.split(jax.random.key(77), 8)
        changed = p.sample(
            jax.random.wrap_key_data(jax.random.key_data(others).at[3].set(jax.random.key_data(keys[3])))
        )
        np.testing.assert_array_equal(alone[0], sample[3])
        np.testing.assert_array_equal(changed[3], sample[3])
        assert not np.array_equal(changed, sample)


class TestInterface:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("batch", [(4,), (3, 4)])
    def test_any_batch_shape(self, kind, batch):
        def everything(p, keys):
            action = p.sample(keys)
            return action, p.mode(), p.log_prob(action), p.entropy(keys), p.kl(p)

        action, mode, *scores = jax.jit(everything)(examples(*batch)[kind], keys_for(0, *batch))
        assert action.shape[: len(batch)] == batch
        assert mode.shape == action.shape
        assert [score.shape for score in scores] == [batch] * 3
        np.testing.assert_allclose(scores[-1], np.zeros(batch), atol=1e-6)

    @pytest.mark.parametrize("kind", KINDS)
    def test_low_precision_parameters_give_float32(self, kind):
        p = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), examples(4)[kind])
        action = p.sample(keys_for(0, 4))
        assert p.log_prob(action).dtype == p.entropy(keys_for(0, 4)).dtype == p.kl(p).dtype == jnp.float32
        exact = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), p)
        np.testing.assert_array_equal(p.log_prob(action), exact.log_prob(action))

    @pytest.mark.parametrize("kind", KINDS)
    def test_gradients_are_finite(self, kind):
        def total(p, action):
            q = jax.tree.map(lambda leaf: leaf * 0.9, p)
            return jnp.sum(p.log_prob(action) + p.entropy(keys_for(0, 4)) + p.kl(q))

        p = examples(4)[kind]
        action, gradient = p.sample(keys_for(0, 4)), jax.jit(jax.grad(total))
        large = p if "gaussian" in kind else jax.tree.map(lambda leaf: leaf * 50, p)
        for parameters in (p, large):
            for leaf in jax.tree.leaves(gradient(parameters, action)):
                assert np.isfinite(leaf).all()
                assert np.abs(leaf).max() > 0

    @pytest.mark.parametrize("kind", KINDS)
    def test_passes_through_jit_and_vmap(self, kind):
        p, keys = examples(2, 4)[kind], keys_for(0, 2, 4)
        scored = lambda p, keys: p.log_prob(p.sample(keys))  # noqa: E731
        over_seeds = jax.jit(jax.vmap(scored))(p, keys)
        np.testing.assert_allclose(over_seeds, jax.jit(scored)(p, keys), rtol=1e-5, atol=1e-6)

    def test_large_logits(self):
        p = Categorical(jnp.array([[1e4, 0.0, -1e4]]))
        assert p.log_prob(jnp.array([0])).tolist() == [0.0]
        assert p.log_prob(jnp.array([2])).tolist() == [-2e4]
        assert p.entropy().tolist() == [0.0]


class TestTanhGaussian:
    def test_actions_at_the_bounds_are_scored_without_nan(self):
        u = jnp.array([[-60.0], [-10.0], [10.0], [60.0]])
        p = TanhGaussian(jnp.zeros((4, 1)), jnp.zeros((4, 1)))
        space = Box(np.array([-1.0], np.float32), np.array([1.0], np.float32), (1,))
        assert p.to_environment(u, space)[:, 0].tolist() == [-1.0, -1.0, 1.0, 1.0]
        # log(1 - tanh(u)^2) tends to 2 log 2 - 2 |u|.
        expected = scipy.stats.norm.logpdf(u[:, 0]) - 2 * math.log(2) + 2 * np.abs(u[:, 0])
        np.testing.assert_allclose(p.log_prob(u), expected, rtol=1e-5)
        gradient = jax.grad(lambda u: jnp.sum(p.log_prob(u)))(u)
        assert np.isfinite(gradient).all()

    def test_entropy_is_an_unbiased_estimate_and_says_so(self):
        draws, mean, std = 40_000, 0.4, 0.8
        p = TanhGaussian(jnp.full((draws, 1), mean), jnp.full((draws, 1), math.log(std)))
        node, weight = np.polynomial.hermite_e.hermegauss(64)
        slope = np.log1p(-(np.tanh(mean + std * node) ** 2)) @ weight / math.sqrt(2 * math.pi)
        exact = math.log(std) + 0.5 * math.log(2 * math.pi * math.e) + slope
        np.testing.assert_allclose(np.mean(p.entropy_estimate(keys_for(6, draws))), exact, atol=0.01)
        assert not TanhGaussian.entropy_is_exact
        assert Gaussian.entropy_is_exact
        with pytest.raises(ValueError, match="needs keys"):
            p.entropy()

    def test_gradient_of_the_estimate_is_that_of_the_entropy(self):
        draws = 40_000

        def estimate(log_std):
            p = TanhGaussian(jnp.full((draws, 1), 0.4), jnp.full((draws, 1), 1.0) * log_std)
            return jnp.mean(p.entropy_estimate(keys_for(6, draws)))

        node, weight = np.polynomial.hermite_e.hermegauss(64)
        u = 0.4 + 0.8 * node
        exact = 1 - (2 * np.tanh(u) * 0.8 * node) @ weight / math.sqrt(2 * math.pi)
        np.testing.assert_allclose(jax.grad(estimate)(jnp.float32(math.log(0.8))), exact, atol=0.02)

    def test_one_key_serves_a_whole_batch(self):
        p = examples(3, 4)["tanh_gaussian"]
        estimate = p.entropy(jax.random.key(0))
        assert estimate.shape == (3, 4)
        assert len(np.unique(estimate)) == 12

    def test_kl_is_the_normals(self):
        p = examples(4)["tanh_gaussian"]
        q = TanhGaussian(p.mean + 0.3, p.log_std - 0.2)
        np.testing.assert_array_equal(p.kl(q), Gaussian(p.mean, p.log_std).kl(Gaussian(q.mean, q.log_std)))


class TestEpsilonGreedy:
    def test_numbers(self):
        """Probabilities 0.1, 0.8, 0.1 and 0.6, 0.2, 0.2."""
        p = EpsilonGreedy(jnp.array([[0.0, 2.0, 1.0]]), 0.3)
        q = EpsilonGreedy(jnp.array([[5.0, -2.0, 4.0]]), 0.6)
        assert p.mode().tolist() == [1]
        assert p.mode().dtype == jnp.int32
        np.testing.assert_allclose(
            [p.log_prob(jnp.array([action]))[0] for action in range(3)], np.log([0.1, 0.8, 0.1]), rtol=1e-6
        )
        np.testing.assert_allclose(p.entropy(), [0.6390319], rtol=1e-6)
        np.testing.assert_allclose(p.kl(q), [0.8605448], rtol=1e-5)
        np.testing.assert_allclose(q.kl(p), [0.9364262], rtol=1e-5)
        np.testing.assert_array_equal(p.value_of(jnp.array([2])), [1.0])
        assert EpsilonGreedy.entropy_is_exact

    def test_without_exploration_only_the_largest_value_is_possible(self):
        p = EpsilonGreedy(jnp.array([[0.0, 2.0, 1.0]]))
        other = EpsilonGreedy(jnp.array([[3.0, 2.0, 1.0]]))
        assert p.log_prob(jnp.array([1])).tolist() == [0.0]
        assert p.log_prob(jnp.array([0])).tolist() == [-math.inf]
        assert p.entropy().tolist() == [0.0]
        assert p.kl(p).tolist() == [0.0]
        assert p.kl(other).tolist() == [math.inf]
        np.testing.assert_allclose(p.kl(p.explore(jnp.float32(0.6))), [-math.log(0.6)], rtol=1e-6)
        assert other.explore(jnp.float32(0.6)).kl(p).tolist() == [math.inf]

    def test_all_exploration_is_uniform(self):
        p = EpsilonGreedy(normal(0, 4, 5), 1.0)
        np.testing.assert_allclose(p.entropy(), np.full(4, math.log(5)), rtol=1e-6)
        np.testing.assert_allclose(p.log_prob(jnp.arange(4)), np.full(4, -math.log(5)), rtol=1e-6)

    @pytest.mark.parametrize(
        "epsilon",
        [0.3, jnp.float32(0.3), jnp.full(3, 0.3), jnp.full((2, 3), 0.3)],
        ids=["float", "[]", "[N]", "[T, N]"],
    )
    def test_exploration_broadcasts_over_the_batch(self, epsilon):
        def everything(p, keys):
            action = p.sample(keys)
            return action, p.log_prob(action), p.entropy(), p.kl(p)

        values = normal(0, 2, 3, 4)
        action, log_prob, entropy, kl = jax.jit(everything)(EpsilonGreedy(values, epsilon), keys_for(0, 2, 3))
        greedy = np.argmax(values, axis=-1)
        np.testing.assert_allclose(log_prob, np.log(np.where(action == greedy, 0.775, 0.075)), rtol=1e-5)
        expected = -(0.775 * math.log(0.775) + 3 * 0.075 * math.log(0.075))
        np.testing.assert_allclose(entropy, np.full((2, 3), expected), rtol=1e-5)
        assert kl.tolist() == [[0.0] * 3] * 2
        explored = EpsilonGreedy(values).explore(epsilon)
        assert explored.epsilon.shape == (2, 3)
        np.testing.assert_array_equal(explored.sample(keys_for(0, 2, 3)), action)

    def test_explore_leaves_the_original(self):
        p = EpsilonGreedy(normal(0, 4, 3))
        explored = p.explore(jnp.float32(0.25))
        assert explored.epsilon.tolist() == [0.25] * 4
        assert p.epsilon == 0.0
        np.testing.assert_array_equal(explored.values, p.values)

    @pytest.mark.parametrize("epsilon", [0.3, 1.0])
    def test_frequencies(self, epsilon):
        draws = 20_000
        p = EpsilonGreedy(jnp.broadcast_to(jnp.array([[0.0, 2.0, 1.0, -1.0]]), (draws, 4)), epsilon)
        action = jax.jit(p.sample)(keys_for(1, draws))
        assert action.dtype == jnp.int32
        expected = np.full(4, epsilon / 4)
        expected[1] += 1 - epsilon
        assert scipy.stats.chisquare(np.bincount(action, minlength=4), expected * draws).pvalue > 0.01

    def test_each_row_explores_by_its_own_share(self):
        values = normal(0, 20_000, 4)
        epsilon = jnp.where(jnp.arange(20_000) < 10_000, 0.0, 0.5)
        p = EpsilonGreedy(values, epsilon)
        is_greedy = np.asarray(p.sample(keys_for(1, 20_000)) == p.mode())
        assert is_greedy[:10_000].all()
        # 0.5 + 0.5 / 4, and four standard errors.
        assert abs(is_greedy[10_000:].mean() - 0.625) < 4 * math.sqrt(0.625 * 0.375 / 10_000)

    def test_a_row_depends_on_its_own_key_only(self):
        keys, p = keys_for(5, 8), EpsilonGreedy(normal(0, 8, 50), 1.0)
        sample = jax.jit(p.sample)(keys)
        alone = EpsilonGreedy(p.values[3:4], 1.0).sample(keys[3:4])
        others = jax.random.key_data(jax.random.split(jax.random.key(77), 8))
        changed = p.sample(jax.random.wrap_key_data(others.at[3].set(jax.random.key_data(keys[3]))))
        assert alone[0] == sample[3] == changed[3]
        assert not np.array_equal(changed, sample)

    def test_gradients_reach_the_chosen_value_alone(self):
        values, action = normal(0, 2, 3), jnp.array([2, 0])

        def total(values):
            p = EpsilonGreedy(values, 0.3)
            return jnp.sum(p.value_of(action) + p.log_prob(action) + p.entropy() + p.kl(EpsilonGreedy(-values)))

        # The KL is infinite, and its slope is none all the same: probabilities are flat in the values.
        np.testing.assert_array_equal(jax.grad(total)(values), [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])


class TestToEnvironment:
    space = Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 4.0], np.float32), (2,))

    def test_gaussian_is_clipped_for_the_environment_only(self):
        p = Gaussian(jnp.zeros((1, 2)), jnp.zeros((1, 2)))
        action = jnp.array([[1.7, -0.5]])
        np.testing.assert_allclose(p.to_environment(action, self.space), [[1.0, 0.0]])
        assert p.log_prob(action) < p.log_prob(p.to_environment(action, self.space))

    def test_tanh_gaussian_fills_the_bounds(self):
        p = TanhGaussian(jnp.zeros((3, 2)), jnp.zeros((3, 2)))
        action = jnp.array([[0.0, 0.0], [30.0, 30.0], [-30.0, math.atanh(0.5)]])
        expected = [[0.0, 2.0], [1.0, 4.0], [-1.0, 3.0]]
        np.testing.assert_allclose(p.to_environment(action, self.space), expected, rtol=1e-6)

    def test_action_has_the_shape_of_the_space(self):
        space = Box(np.full((2, 2), -1, np.float32), np.full((2, 2), 1, np.float32), (2, 2))
        p = Gaussian(jnp.zeros((3, 4)), jnp.zeros((3, 4)))
        assert p.to_environment(p.mode(), space).shape == (3, 2, 2)

    def test_discrete_actions_are_given_as_they_are(self):
        p, action = examples(4), jnp.array([0, 1, 2, 3])
        np.testing.assert_array_equal(p["categorical"].to_environment(action, Discrete(5)), action)
        np.testing.assert_array_equal(EpsilonGreedy(normal(0, 4, 5)).to_environment(action, Discrete(5)), action)
        choices = p["multi_categorical"].mode()
        np.testing.assert_array_equal(p["multi_categorical"].to_environment(choices, MultiDiscrete(SIZES)), choices)
