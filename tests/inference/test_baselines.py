"""Baselines: the formulas against exact densities and real neighbours, the order of charge and use, and coverage."""

import importlib
import json
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special

import confide
from confide.inference.baselines import (
    minimum,
    objective_perturbation,
    output_perturbation,
    sufficient_statistics_regression,
)
from confide.inference.baselines import sufficient_statistics as statistics
from confide.inference.baselines.minimum import Objective, minimise
from confide.mechanism import noise as noises
from confide.mechanism.exact_rounding import FINE
from confide.models import (
    linear_regression,
    logistic_regression,
    negative_binomial_regression,
    poisson_regression,
    softmax_regression,
)
from confide.models.convexity import Shape
from confide.privacy.accountants.gdp import delta_of_mu, mu_of_epsilon
from confide.privacy.budget import Budget
from confide.validation import Refused
from helpers.fits import X, Y, ledger_of

objective = importlib.import_module("confide.baselines.objective_perturbation")  # the name is the function's

MODEL = logistic_regression(3, norm_bound=1.0)
BUDGET = Budget(epsilon=1.0, delta=1e-5)
PURE = Budget(epsilon=1.0, delta=0.0)
RELATIONS = ("add-remove", "replace-one")
LINE = linear_regression(3, noise_scale=0.5, norm_bound=1.0)
OUTCOMES = (X @ [0.5, -0.2, 0.1]).astype(np.float32)
WIDE = 2000


def flat(posterior):
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(posterior.draws)])


def minimum_of(model, data, regularisation, clip=None, tilt=0.0, tolerance=1e-9):
    x, y = data
    problem = Objective(
        model=model, data=(np.asarray(x), np.asarray(y)), clip=clip, regularisation=regularisation, tilt=tilt
    )
    return minimise(problem, tolerance, x.shape[1] * problem.outputs)


# The minimum.


@pytest.mark.parametrize(
    ("model", "labels", "clip"),
    [
        (MODEL, Y, None),
        (MODEL, Y, 0.3),
        (linear_regression(3, noise_scale=0.5, norm_bound=1.0), OUTCOMES, 0.7),
        (poisson_regression(3, norm_bound=1.0, largest_mean=5.0), np.round(np.abs(OUTCOMES) * 3), 1.5),
        (negative_binomial_regression(3, dispersion=0.5, norm_bound=1.0), np.round(np.abs(OUTCOMES) * 3), 1.5),
        (softmax_regression(3, 4, norm_bound=1.0), np.round(np.abs(X[:, 0])).clip(0, 3), None),
    ],
    ids=["logistic", "clipped", "linear", "poisson", "negative binomial", "softmax"],
)
def test_gradient_is_the_models_and_its_minimum_is_certified(model, labels, clip):
    x = (X / np.maximum(1, np.linalg.norm(X, axis=1))[:, None] * 0.999).astype(np.float32)
    problem = Objective(model=model, data=(x, labels), clip=clip, regularisation=2.0)
    theta = np.random.default_rng(0).normal(size=3 * problem.outputs)
    shaped = theta.reshape(3, *model.linear.outputs)
    with jax.enable_x64(True):
        scores, outcomes = (jnp.asarray(array, jnp.float64) for array in (x.astype(np.float64) @ shaped, labels))
        residual = np.asarray(model.linear.residual(scores, outcomes))
    if clip is not None:
        reach = clip / np.linalg.norm(x.astype(np.float64), axis=1)
        residual = np.clip(residual, -reach, reach)
    expected = (x.astype(np.float64).T @ residual).ravel() + 2.0 * theta
    np.testing.assert_allclose(problem.gradient(theta), expected, rtol=1e-10, atol=1e-9)
    allowed = minimum.tolerance(model, len(x), clip, 2.0, theta.size)
    found = minimise(problem, allowed, theta.size)
    assert np.linalg.norm(problem.gradient(found)) <= allowed < 1e-8
    vector = np.random.default_rng(1).normal(size=theta.size)
    numerical = (problem.gradient(theta + 1e-6 * vector) - problem.gradient(theta - 1e-6 * vector)) / 2e-6
    np.testing.assert_allclose(problem.curved(theta, vector), numerical, rtol=1e-4, atol=1e-4)


def test_minimum_is_certified_where_newton_overshoots():
    """A steep slope against a weak regularisation starts far from the minimum."""
    x = np.full((3, 1), 1.0, np.float32)
    y = np.array([0, 1, 1], np.float32)
    for tilt in (-300.0, 0.0, 300.0):
        found = minimum_of(logistic_regression(1, norm_bound=1.0), (x, y), 0.01, tilt=np.array([tilt]), tolerance=1e-10)
        mean = special.expit(found[0])
        assert abs(3 * mean - 2 + 0.01 * found[0] + tilt) <= 1e-10


# Sensitivity on real neighbours.


@pytest.mark.parametrize("relation", RELATIONS)
def test_minimum_of_neighbours_moves_no_further_than_claimed(relation):
    generator, furthest = np.random.default_rng(2), 0.0
    for trial in range(40):
        n, regularisation = int(generator.integers(1, 12)), float(10 ** generator.uniform(-1.5, 1))
        x = generator.normal(size=(n + 1, 3))
        x = (x / np.linalg.norm(x, axis=1)[:, None] * 0.999999).astype(np.float32)
        y = generator.integers(0, 2, n + 1).astype(np.float32)
        if trial % 2:  # one record against a crowd that is sure of the opposite
            x[:], y[:n], y[n] = x[0], 1, 0
        others = (x[:n], y[:n]) if relation == "add-remove" else (x[[*range(n - 1), n]], y[[*range(n - 1), n]])
        data = (x, y) if relation == "add-remove" else (x[:n], y[:n])
        moved = np.linalg.norm(minimum_of(MODEL, data, regularisation) - minimum_of(MODEL, others, regularisation))
        claim = {"add-remove": 1.0, "replace-one": 2.0}[relation] / regularisation
        assert moved <= claim + 1e-7
        furthest = max(furthest, moved / claim)
    assert furthest > 0.3


def test_claimed_sensitivity_is_attained_by_records_cut_at_the_clip():
    """All residuals are cut, so every record adds exactly its clip to the gradient."""
    x, y = np.ones((3, 1), np.float32), np.array([50.0, 50.0, -50.0], np.float32)
    model = linear_regression(1, norm_bound=1.0)
    two = minimum_of(model, (x[:2], y[:2]), 2.0, clip=1.0)
    three = minimum_of(model, (x, y), 2.0, clip=1.0)
    replaced = minimum_of(model, (x[:2], y[[0, 2]]), 2.0, clip=1.0)
    assert abs(two - three)[0] == pytest.approx(1.0 / 2.0, abs=1e-9)
    assert abs(two - replaced)[0] == pytest.approx(2.0 / 2.0, abs=1e-9)


# Exact densities of objective perturbation in one and two dimensions.


LINKS = {
    "logistic": (Shape(1.0, 0.25, 1.0), lambda s, y: (special.expit(s) - y, special.expit(s) * special.expit(-s))),
    "cut": (Shape(1.0, 1.0, 1.0), lambda s, y: (np.clip(s - y, -1, 1), (np.abs(s - y) < 1) * 1.0)),
}


def log_densities(grid, x, y, link, regularisation, log_noise):
    """log density of the minimum: the noise at minus the gradient, times the determinant of the Hessian."""
    residual, weight = LINKS[link][1](grid @ x.T, y)
    hessian = np.einsum("ti,ij,ik->tjk", weight, x, x) + regularisation * np.eye(x.shape[1])
    return log_noise(residual @ x + regularisation * grid) + np.linalg.slogdet(hessian)[1]


def neighbours_in_one_dimension(relation, link):
    """Few records, so that the determinants count, and records as different as can be."""
    one, crowd = np.array([[1.0]]), np.array([[1.0], [1.0], [-1.0]])
    labels = (0.0, 1.0) if link == "logistic" else (0.0, 1.5, 50.0, -50.0)
    for x, y in ((one[:0], np.zeros(0)), (crowd, np.array([1.0, 1.0, 0.0])), (crowd, np.array([0.0, 1.0, 1.0]))):
        for label in labels:
            fuller = (np.concatenate([x, one]), np.append(y, label))
            if relation == "add-remove":
                yield (x, y), fuller
                continue
            yield (np.concatenate([x, -one]), np.append(y, label)), fuller
            for other in labels:
                yield (np.concatenate([x, one]), np.append(y, other)), fuller


def gaussian_log(scale):
    return lambda b: -np.sum(b**2, axis=-1) / (2 * scale**2) - b.shape[-1] * math.log(scale * math.sqrt(2 * math.pi))


def spherical_log(scale, b):
    return -np.linalg.norm(b, axis=-1) / scale


def hockey_stick(first, second, epsilon, cell):
    return float(np.sum(np.maximum(np.exp(first) - np.exp(epsilon + second), 0.0)) * cell)


def worst_delta(relation, link, scale, regularisation, epsilon):
    grid = np.linspace(-12, 12, 6001)[:, None] * scale / regularisation
    cell, worst = float(grid[1, 0] - grid[0, 0]), 0.0
    for left, right in neighbours_in_one_dimension(relation, link):
        pair = [log_densities(grid, *data, link, regularisation, gaussian_log(scale)) for data in (left, right)]
        assert np.exp(pair[0]).sum() * cell == pytest.approx(1.0, abs=1e-2)
        worst = max(worst, hockey_stick(*pair, epsilon, cell), hockey_stick(*pair[::-1], epsilon, cell))
    return worst


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("relation", RELATIONS)
def test_gaussian_slope_keeps_its_profile_on_exact_densities(relation, link):
    shape, epsilon, target = LINKS[link][0], 1.0, 1e-2
    for regularisation in (1.0, 20.0):
        scale = objective.gaussian_scale(epsilon, target, regularisation, shape, relation)
        assert objective.gaussian_delta(epsilon, scale, regularisation, shape, relation) == pytest.approx(target)
        worst = worst_delta(relation, link, scale, regularisation, epsilon)
        assert worst <= target
    if link == "cut":  # its gradients are as long as allowed wherever theta is
        assert worst > target / 4
        assert worst_delta(relation, link, scale / 2, regularisation, epsilon) > target


@pytest.mark.parametrize("link", LINKS)
def test_gaussian_slope_keeps_its_profile_for_two_directions(link):
    """Replacing a record by one at any angle: the union over orthogonal corners."""
    shape, regularisation, epsilon, target, worst = LINKS[link][0], 4.0, 1.0, 1e-2, 0.0
    scale = objective.gaussian_scale(epsilon, target, regularisation, shape, "replace-one")
    axis = np.linspace(-6, 6, 121) * scale / regularisation
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    cell = float(axis[1] - axis[0]) ** 2
    for angle in (0.0, 1.0, math.pi / 2, 2.5, math.pi):
        x = np.array([[1.0, 0.0], [math.cos(angle), math.sin(angle)]])
        for y in ((1.0, 0.0), (1.0, 1.0), (50.0, -50.0), (50.0, 50.0)):
            if link == "logistic" and y[0] > 1:
                continue
            pair = [
                log_densities(grid, x[[i]], np.array([y[i]]), link, regularisation, gaussian_log(scale)) for i in (0, 1)
            ]
            assert np.exp(pair[0]).sum() * cell == pytest.approx(1.0, abs=1e-2)
            worst = max(worst, hockey_stick(*pair, epsilon, cell))
    assert worst <= target
    assert worst > target / 10 or link == "logistic"


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("relation", RELATIONS)
def test_spherical_slope_is_pure_on_exact_densities(relation, link):
    shape, epsilon = LINKS[link][0], 1.0
    for regularisation in (1.0, 20.0):
        scale, worst = objective.spherical_scale(epsilon, regularisation, shape, relation), 0.0
        grid = np.linspace(-40, 40, 6001)[:, None] * scale / regularisation
        noise = partial(spherical_log, scale)
        for pair in neighbours_in_one_dimension(relation, link):
            first, second = (log_densities(grid, *data, link, regularisation, noise) for data in pair)
            worst = max(worst, float(np.max(np.abs(first - second))))
        assert worst <= epsilon * (1 + 1e-9)
    assert worst > 0.9 * epsilon or link == "logistic"


def test_scales_by_hand():
    shape = Shape(2.0, 1.0, 0.5)
    assert objective.determinant_cost(1.0, 4.0) == pytest.approx(math.log(1.25))
    assert objective.least_regularisation(2.0, 1.0) == pytest.approx(1 / (math.e - 1))
    assert objective.spherical_scale(1.0, 4.0, shape, "add-remove") == pytest.approx(2 / (1 - math.log(1.25)))
    assert objective.spherical_scale(1.0, 4.0, shape, "replace-one") == pytest.approx(4 / (1 - math.log(1.25)))
    mu = mu_of_epsilon(1 - math.log(1.25), 0.5e-5)
    assert objective.gaussian_scale(1.0, 1e-5, 4.0, shape, "add-remove") == pytest.approx(2 / mu)
    assert objective.gaussian_scale(1.0, 1e-5, 4.0, shape, "replace-one") == pytest.approx(4 / mu)


def test_profile_of_the_slope_is_the_expected_loss():
    """2 delta_mu is E (1 - e^(epsilon - mu |z| - mu^2/2))^+, by quadrature; and nothing is claimed beyond its reach."""
    mu, rest = 0.4, 0.9
    expected, _ = integrate.quad(
        lambda z: (1 - math.exp(min(0.0, rest - mu * z - mu**2 / 2))) * math.exp(-(z**2) / 2) / math.sqrt(2 * math.pi),
        0,
        12,
        points=[(rest - mu**2 / 2) / mu],
    )
    assert 2 * delta_of_mu(mu, rest) == pytest.approx(2 * expected, rel=1e-8)
    shape = Shape(1.0, 1e-12, 1.0)
    assert objective.gaussian_delta(1.0, 1.0, 1.0, shape, "add-remove") == 1.0  # 1 < sqrt(1/4 + 1)
    lengths = np.linspace(0, 4 * mu**2, 50)  # two orthogonal corners cost no more than one with both lengths
    both = [delta_of_mu(math.sqrt(w), 2.0) if w else 0.0 for w in lengths]
    assert np.all(np.array(both) + np.array(both[::-1]) <= both[-1] * (1 + 1e-9))


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 2.0])
def test_noise_is_below_the_published_constants(epsilon):
    shape, delta = Shape(1.0, 0.25, 1.0), 1e-5
    published = math.sqrt(8 * math.log(2 / delta) + 4 * epsilon) / epsilon
    assert objective.gaussian_scale(epsilon, delta, 2 * 0.25 / epsilon, shape, "add-remove") < published


# The release: its price, its conditions, its ledger, its key.


CALLS = {
    "output": lambda **more: output_perturbation(MODEL, (X, Y), verbose=False, **more),
    "laplace": lambda **more: output_perturbation(MODEL, (X, Y), noise="laplace", verbose=False, **more),
    "iyengar": lambda **more: objective_perturbation(MODEL, (X, Y), verbose=False, **more),
    "kifer": lambda **more: objective_perturbation(MODEL, (X, Y), method="kifer2012", verbose=False, **more),
    "chaudhuri": lambda **more: objective_perturbation(MODEL, (X, Y), method="chaudhuri2011", verbose=False, **more),
    "statistics": lambda **more: sufficient_statistics_regression(
        LINE, (X, OUTCOMES), outcome_bound=1.0, draws=20, verbose=False, **more
    ),
}


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("name", CALLS)
def test_release_costs_its_budget_and_the_ledger_is_charged_once(name, relation, tmp_path):
    ledger = confide.Ledger.create(tmp_path / "ledger.db")
    ledger.enter("patients", Budget(epsilon=1.5, delta=2e-5, neighbours=relation))
    budget = Budget(epsilon=1.0, delta=1e-5, neighbours=relation)
    posterior = CALLS[name](budget=budget, ledger=ledger, key=1)
    assert 0.99 < posterior.guarantee.epsilon <= 1.0 + 1e-6
    assert confide.verify(posterior.guarantee) <= 1.0 + 1e-6
    assert posterior.chains == 1
    (charge,) = ledger.history("patients")
    assert charge.event == posterior.guarantee.event
    assert posterior.plan["ledger"]["receipt"] == charge.receipt
    with pytest.raises(confide.BudgetExceeded):
        CALLS[name](budget=budget, ledger=ledger, key=1)
    assert len(ledger.history("patients")) == 1


def test_ledger_is_charged_before_the_records_are_used(tmp_path, monkeypatch):
    ledger = ledger_of(tmp_path)

    def interrupted(*arguments):
        assert len(ledger.history("patients")) == 1
        raise KeyboardInterrupt

    for module, name in ((objective, "minimise"), (statistics, "whole_statistics")):
        monkeypatch.setattr(module, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        objective_perturbation(MODEL, (X, Y), BUDGET, ledger=ledger, verbose=False)
    ledger = confide.Ledger.create(tmp_path / "other.db")
    ledger.enter("patients", BUDGET)
    with pytest.raises(KeyboardInterrupt):
        sufficient_statistics_regression(LINE, (X, OUTCOMES), BUDGET, outcome_bound=1.0, ledger=ledger, verbose=False)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda **m: objective_perturbation(MODEL, (X, Y), BUDGET, method="newton", **m), "method"),
        (lambda **m: objective_perturbation(MODEL, (X, Y), BUDGET, clip=-1.0, **m), "clip"),
        (
            lambda **m: objective_perturbation(MODEL, (X, Y), BUDGET, regularisation=0.1, **m),
            "below the 1 of the prior",
        ),
        (lambda **m: objective_perturbation(MODEL, (X[:, :2], Y), BUDGET, **m), "columns"),
        (lambda **m: objective_perturbation(logistic_regression(3, prior="laplace"), (X, Y), BUDGET, **m), "laplace"),
        (lambda **m: objective_perturbation(LINE, (X, OUTCOMES), BUDGET, **m), "clip"),
        (
            lambda **m: objective_perturbation(softmax_regression(3, 2, norm_bound=1.0), (X, Y), BUDGET, **m),
            "several scores",
        ),
        (lambda **m: objective_perturbation(MODEL, (X, Y), PURE, method="kifer2012", **m), "chaudhuri2011"),
        (
            lambda **m: objective_perturbation(
                logistic_regression(3, 10.0, norm_bound=1.0), (X, Y), BUDGET, regularisation=0.02, **m
            ),
            "too weak",
        ),
        (lambda **m: objective_perturbation(MODEL, (X, Y), BUDGET, **(m | {"key": 1.5})), "key"),
        (lambda **m: output_perturbation(MODEL, (X, Y), PURE, **m), "noise='laplace'"),
        (lambda **m: output_perturbation(MODEL, (X, Y), BUDGET, noise="uniform", **m), "noise"),
        (lambda **m: output_perturbation(LINE, (X, OUTCOMES), BUDGET, **m), "clip"),
        (lambda **m: output_perturbation(MODEL, (X, Y), 1.0, **m), "budget"),
        (lambda **m: sufficient_statistics_regression(MODEL, (X, Y), BUDGET, outcome_bound=1.0, **m), "logistic"),
        (lambda **m: sufficient_statistics_regression(LINE, (X, OUTCOMES), BUDGET, outcome_bound=0, **m), "outcome_bo"),
        (lambda **m: sufficient_statistics_regression(LINE, (X, OUTCOMES), PURE, outcome_bound=1.0, **m), "delta = 0"),
        (
            lambda **m: sufficient_statistics_regression(LINE, (X, OUTCOMES), BUDGET, outcome_bound=1, draws=0, **m),
            "draws",
        ),
    ],
)
def test_bad_input_is_refused_in_a_line_and_not_charged(call, words, tmp_path):
    ledger = ledger_of(tmp_path)
    with pytest.raises(Refused, match=words) as refusal:
        call(ledger=ledger, verbose=False, key=None)
    assert "\n" not in str(refusal.value)
    assert ledger.history("patients") == []


@pytest.mark.parametrize("name", ["laplace", "iyengar", "chaudhuri"])
def test_pure_releases_need_no_delta(name):
    for relation in RELATIONS:
        posterior = CALLS[name](budget=Budget(epsilon=1.0, delta=0.0, neighbours=relation), key=1)
        assert posterior.guarantee.epsilon == pytest.approx(1.0)
        assert posterior.guarantee.delta == 0
        assert any("Gamma" in sentence for sentence in posterior.guarantee.assumptions)


def test_only_methods_that_need_it_assume_an_exact_minimum():
    for name, expected in (("iyengar", False), ("kifer", True), ("chaudhuri", True), ("output", False)):
        sentences = CALLS[name](budget=BUDGET, key=1).guarantee.assumptions
        assert any("exactly: its gradient" in sentence for sentence in sentences) == expected


def test_regularisation_is_raised_where_the_prior_is_too_weak(capsys):
    weak = logistic_regression(3, 100.0, norm_bound=1.0)
    posterior = objective_perturbation(weak, (X, Y), Budget(epsilon=0.1, delta=1e-5), key=1)
    plan = posterior.plan
    assert plan["prior_regularisation"] == pytest.approx(1e-4)
    assert plan["regularisation"] >= objective.least_regularisation(0.1 * (1 - objective.HIDING), 0.25)
    assert "the prior is too weak" in capsys.readouterr().err
    strong = logistic_regression(3, 0.01, norm_bound=1.0)
    posterior = objective_perturbation(strong, (X, Y), BUDGET, key=1)
    assert posterior.plan["regularisation"] == pytest.approx(1e4)
    assert "too weak" not in capsys.readouterr().err


@pytest.mark.parametrize("name", CALLS)
def test_a_key_given_again_is_the_same_release_and_other_noise_for_other_settings(name):
    first, again = (flat(CALLS[name](budget=BUDGET, key=5)) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - flat(CALLS[name](budget=BUDGET, key=6))).max() > 1e-4
    assert np.abs(first - flat(CALLS[name](budget=BUDGET))).max() > 1e-4


def test_a_key_given_for_other_records_is_other_noise():
    """Columns that are all zeros show the noise bare."""
    x = np.zeros((4, 50), np.float32)
    x[:, 0] = 1.0
    model, shown = logistic_regression(50, norm_bound=1.0), []
    for labels in ([0, 1, 1, 1], [0, 1, 1, 0]):
        posterior = output_perturbation(model, (x, np.array(labels, np.float32)), BUDGET, key=3, verbose=False)
        shown.append(flat(posterior)[1:])
    assert abs(np.corrcoef(shown)[0, 1]) < 0.6


def measured(call, **more):
    """Noise drawn over noise claimed, from the columns that no record uses: there the minimum is the noise alone."""
    x = np.zeros((8, WIDE), np.float32)
    x[:, 0] = 1.0
    y = np.array([0, 1] * 4, np.float32)
    posterior = call(logistic_regression(WIDE, norm_bound=1.0), (x, y), key=7, verbose=False, **more)
    plan, drawn = posterior.plan, flat(posterior)[1:]
    if call is objective_perturbation:
        drawn = drawn * plan["regularisation"]
    if more.get("noise") == "laplace" or more.get("method") == "chaudhuri2011":
        return np.linalg.norm(drawn) / (WIDE * plan["noise_scale"])
    return np.std(drawn) / plan["noise_scale"]


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(
    ("call", "more"),
    [
        (output_perturbation, {}),
        (output_perturbation, {"noise": "laplace"}),
        (objective_perturbation, {}),
        (objective_perturbation, {"method": "chaudhuri2011"}),
    ],
)
def test_noise_is_as_large_as_claimed_and_half_of_it_is_caught(call, more, half, monkeypatch):
    """The standard error is 1.6% for Gaussian noise and 2.2% for spherical: five of them are allowed."""
    whole = noises.around
    if half:
        monkeypatch.setattr(
            noises, "around", lambda point, scale, key, **kind: whole(point, scale / 2, key, **kind), raising=True
        )
    assert (abs(measured(call, budget=BUDGET, **more) - 1) < 0.11) == (not half)


def test_claimed_noise_is_the_sensitivity_over_the_price():
    for relation, factor in zip(RELATIONS, (1.0, 2.0), strict=True):
        budget = Budget(epsilon=1.0, delta=1e-5, neighbours=relation)
        plan = output_perturbation(MODEL, (X, Y), budget, regularisation=4.0, key=1, verbose=False).plan
        assert plan["noise_scale"] == pytest.approx(factor / (4.0 * mu_of_epsilon(1.0, 1e-5)), rel=1e-6)
        plan = objective_perturbation(MODEL, (X, Y), budget, regularisation=4.0, key=1, verbose=False).plan
        mu = mu_of_epsilon(0.99 - math.log1p(0.25 / 4), 0.99 * 0.999e-5 / 2)
        assert plan["noise_scale"] == pytest.approx(factor / mu, rel=1e-9)
        unsure = plan["tolerance"] + math.sqrt(3) * plan["noise_scale"] / FINE  # of the solver, and of the slope
        spent = 2 * unsure / (4.0 * plan["output_noise_scale"]) + noises.SUMS.lost(3)  # and of the point
        assert spent == pytest.approx(mu_of_epsilon(0.01, 0.01 * 0.999e-5), rel=1e-9)


@pytest.mark.parametrize(
    "call",
    [
        output_perturbation,
        lambda *a, **k: output_perturbation(*a, noise="laplace", **k),
        objective_perturbation,
        lambda model, *a, **k: sufficient_statistics_regression(linear_regression(3, norm_bound=1.0), *a, **k),
    ],
    ids=["output", "laplace", "objective", "statistics"],
)
def test_secure_noise_takes_no_key_and_says_so(call):
    two = [call(MODEL, (X, Y), BUDGET, secure=True, verbose=False) for _ in range(2)]
    assert not np.array_equal(flat(two[0]), flat(two[1]))
    assert two[0].plan["noise"] == "secure"
    assert "a key of 256 bits" in " ".join(two[0].guarantee.sentences())
    plain = call(MODEL, (X, Y), BUDGET, verbose=False)
    assert plain.plan["noise"] == "default"
    assert "a key of 64 bits" in " ".join(plain.guarantee.sentences())
    assert plain.plan["noise_scale"] == two[0].plan["noise_scale"]
    with pytest.raises(Refused, match="leave key out"):
        call(MODEL, (X, Y), BUDGET, secure=True, key=1, verbose=False)


def test_spherical_noise_has_a_gamma_length_and_no_direction():
    draws = np.stack([noises.around(np.zeros(4), 2.0, noises.as_key(i), spherical=True) for i in range(400)])
    lengths = np.linalg.norm(draws, axis=1) / 2.0
    assert abs(lengths.mean() - 4) < 5 * 2 / 20
    assert abs(lengths.var() - 4) < 5 * math.sqrt((3 * 4 * 6 - 16 * 1) / 400)
    assert np.all(np.abs((draws / lengths[:, None] / 2.0).mean(axis=0)) < 5 * 0.5 / 20)


def test_posterior_predicts_and_its_plan_can_be_written():
    model = logistic_regression(3, norm_bound=1.0, intercept=True)
    posterior = objective_perturbation(model, (X, Y), Budget(epsilon=20.0, delta=1e-5), key=1, verbose=False)
    assert np.mean(posterior.predict(X) == Y) > 0.75
    assert posterior.draws["weights"].shape == (1, 1, 3)
    assert posterior.draws["intercept"].shape == (1, 1)
    assert json.loads(json.dumps(posterior.plan)) == posterior.plan
    classes = softmax_regression(3, 2, norm_bound=1.0)
    posterior = output_perturbation(classes, (X, Y), Budget(epsilon=50.0, delta=1e-5), key=1, verbose=False)
    assert np.mean(posterior.predict(X) == Y) > 0.75


# Linear regression from noisy statistics.


@pytest.mark.parametrize("square", [False, True])
@pytest.mark.parametrize("relation", RELATIONS)
def test_statistics_of_neighbours_move_no_further_than_claimed(relation, square):
    generator, furthest = np.random.default_rng(3), 0.0
    claim = statistics.sensitivity(relation, square, 500)
    for trial in range(200):
        x = generator.normal(size=(2, 3))
        x /= np.linalg.norm(x, axis=1)[:, None]
        y = generator.choice([-1.0, 1.0, 0.3], size=2)
        if trial % 3 == 0:
            x[1], y[:] = x[0], (1.0, -1.0)
        elif trial % 3 == 1:
            x[1], y[:] = np.cross(x[0], [0.0, 0.0, 1.0]), (1.0, 0.0)
        alone = statistics.sum_statistics(2 * x[:1], 3 * y[:1], 2.0, 3.0, square)
        other = statistics.sum_statistics(2 * x[1:], 3 * y[1:], 2.0, 3.0, square) if relation == "replace-one" else 0.0
        moved = np.linalg.norm(alone - other)
        assert moved <= claim
        furthest = max(furthest, moved / claim)
    assert furthest > 0.999


def test_statistics_are_unpacked_as_they_were_packed():
    flat_statistics = statistics.sum_statistics(0.1 * X, OUTCOMES.clip(-1, 1), 2.0, 1.0, True)
    found = statistics.unpack(flat_statistics, 500, 1.0, 2.0, 1.0, True)
    rows, outcomes = (0.1 * X).astype(np.float64), OUTCOMES.clip(-1, 1).astype(np.float64)
    np.testing.assert_allclose(found.matrix, rows.T @ rows, rtol=1e-5)
    np.testing.assert_allclose(found.vector, rows.T @ outcomes, rtol=1e-4)
    assert found.square == pytest.approx(outcomes @ outcomes, rel=1e-5)
    noise = noises.around(np.zeros((4000, 10)), 1.0, noises.as_key(1))
    drawn = statistics.unpack(noise, 500, 1.0, 2.0, 3.0, True)
    assert np.std(drawn.matrix[:, 0, 0]) == pytest.approx(drawn.matrix_scale, rel=0.06)
    assert np.std(drawn.matrix[:, 0, 1]) == pytest.approx(drawn.matrix_scale / math.sqrt(2), rel=0.06)
    assert np.std(drawn.vector) == pytest.approx(drawn.vector_scale, rel=0.06)
    assert np.std(drawn.square) == pytest.approx(drawn.square_scale, rel=0.06)
    theta = np.array([1.0, -2.0, 0.5])  # the covariance of E theta, as it enters the inference
    moved = drawn.matrix @ theta
    expected = drawn.matrix_scale**2 * (theta @ theta * np.eye(3) + np.outer(theta, theta)) / 2
    np.testing.assert_allclose(np.cov(moved.T), expected, atol=0.08 * expected.max())


def test_without_noise_it_is_the_exact_posterior():
    exact = statistics.unpack(statistics.sum_statistics(X, OUTCOMES, 8.0, 8.0, False), 500, 1e-9, 8.0, 8.0, False)
    found = statistics.coefficients(exact, 0.25, 1.0)
    rows = X.astype(np.float64)
    covariance = np.linalg.inv(rows.T @ rows / 0.25 + np.eye(3))
    np.testing.assert_allclose(found.covariance, covariance, rtol=1e-4)
    np.testing.assert_allclose(found.mean, covariance @ rows.T @ OUTCOMES / 0.25, rtol=1e-4)


def test_where_noise_drowns_the_data_the_prior_remains():
    noise = noises.around(np.zeros((300, 9)), 1e4, noises.as_key(2))
    found = statistics.coefficients(statistics.unpack(noise, 10, 1e4, 1.0, 1.0, False), 0.1, 0.7)
    assert np.all(np.isfinite(found.mean))
    widths = np.sqrt(np.diagonal(found.covariance, axis1=-2, axis2=-1))
    assert 0.4 < np.median(widths) <= 0.7 * (1 + 1e-6)


def simulated(dimension, theta_scale, residual_scale, seed):
    """500 datasets of 1000 records: features uniform in the ball, coefficients from the prior."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(500, 1000, dimension))
    x *= generator.random((500, 1000, 1)) ** (1 / dimension) / np.linalg.norm(x, axis=-1, keepdims=True)
    theta = theta_scale * generator.normal(size=(500, dimension))
    y = (x @ theta[..., None])[..., 0] + residual_scale * generator.normal(size=(500, 1000))
    return x, y, theta


def covered(gaussian, theta):
    width = special.ndtri(0.95) * np.sqrt(np.diagonal(gaussian.covariance, axis1=-2, axis2=-1))
    return np.mean(np.abs(theta - gaussian.mean) <= width)


@pytest.mark.parametrize(
    ("dimension", "theta_scale", "residual_scale"),
    [
        (3, 0.3, 0.3),
        pytest.param(3, 1.0, 0.3, marks=pytest.mark.long),
        pytest.param(5, 1.0, 0.1, marks=pytest.mark.long),
        pytest.param(5, 0.3, 0.3, marks=pytest.mark.long),
    ],
)
def test_intervals_cover_at_their_rate_where_plug_in_intervals_do_not(dimension, theta_scale, residual_scale):
    x, y, theta = simulated(dimension, theta_scale, residual_scale, 11)
    bound = 3 * math.hypot(theta_scale, residual_scale)
    for square in (False, True):
        exact = statistics.sum_statistics(x, y, 1.0, bound, square)
        for epsilon in (0.1, 1.0):
            scale = statistics.sensitivity("add-remove", square, 1000) / mu_of_epsilon(epsilon, 1e-5)
            noisy = noises.around(exact, scale, noises.as_key(3))
            found = statistics.unpack(noisy, 1000, scale, 1.0, bound, square)
            assert covered(statistics.plug_in(found, residual_scale**2, theta_scale), theta) < 0.65
            if not square:
                assert 0.87 <= covered(statistics.coefficients(found, residual_scale**2, theta_scale), theta) <= 0.93
                continue
            scales, given, weights = statistics.residual_scales(found, theta_scale, bound)
            spread = np.sqrt(np.diagonal(given.covariance, axis1=-2, axis2=-1))
            level = np.einsum("rg,rgd->rd", weights, special.ndtr((theta[:, None] - given.mean) / spread))
            assert 0.87 <= np.mean((level >= 0.05) & (level <= 0.95)) <= 0.93
    assert np.median(weights @ scales) == pytest.approx(residual_scale, rel=0.6)


@pytest.mark.parametrize("theta", [[1.0, -0.5, 0.8], [1.0, -1.0]])
def test_intervals_cover_a_fixed_truth(theta):
    """The same coefficients in all 500 datasets, under a prior of scale 1."""
    x, y, drawn = simulated(len(theta), 1.0, 0.3, 12)
    y = y + (x @ (np.array(theta) - drawn)[..., None])[..., 0]
    exact = statistics.sum_statistics(x, y, 1.0, 2.5, False)
    for epsilon in (0.1, 1.0):
        scale = statistics.sensitivity("add-remove", False, 1000) / mu_of_epsilon(epsilon, 1e-5)
        found = statistics.unpack(noises.around(exact, scale, noises.as_key(5)), 1000, scale, 1.0, 2.5, False)
        assert 0.87 <= covered(statistics.coefficients(found, 0.09, 1.0), np.array(theta)) <= 0.93
        assert covered(statistics.plug_in(found, 0.09, 1.0), np.array(theta)) < 0.55


def test_regression_returns_a_posterior_of_its_model():
    model = linear_regression(3, noise_scale=0.2, intercept=True, norm_bound=1.0)
    x = X / np.maximum(1, np.linalg.norm(X, axis=1))[:, None]
    y = x @ [0.5, -0.2, 0.1] + 0.3
    posterior = sufficient_statistics_regression(
        model, (x, y), Budget(epsilon=30.0, delta=1e-5), outcome_bound=1.5, residual="estimated", key=1, verbose=False
    )
    assert posterior.draws["weights"].shape == (1, 1000, 3)
    mean = np.append(posterior.draws["weights"].mean((0, 1)), posterior.draws["intercept"].mean())
    spread = np.append(posterior.draws["weights"].std((0, 1)), posterior.draws["intercept"].std())
    assert np.all(np.abs(mean - [0.5, -0.2, 0.1, 0.3]) < 4.5 * spread)
    assert np.all(spread < 0.1)
    assert posterior.model.settings["noise_scale"] != 0.2
    assert posterior.interval(x[:5]).shape == (5, 2)
