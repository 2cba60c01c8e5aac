"""What the other accounts of a run cost, and what individual ones say: one command for each table.

    python benchmarks/accounts.py steps        # time of a step with and without the Bayesian account
    python benchmarks/accounts.py estimate     # time of the estimate from 10,000 x 64 distances at 64 orders
    python benchmarks/accounts.py individual   # Adult at epsilon 1: who spends what, and what leaving people out does

`steps` runs the two programs in turn: times are the best of several rounds, the ratio is the median over the rounds;
the estimate at the end of a run is timed by itself. Logistic regression on Adult, batches of 256, and a network of 64
hidden units on MNIST.
"""

import sys
import time

import jax
import numpy as np

import confide
from confide import data, models
from confide.inference import loop, plans
from confide.inference.options import Options
from confide.inference.plans import stochastic
from confide.mechanism import noise
from confide.privacy.accountants import bayesian
from confide.privacy.extra_accounts import Accounts, Individual

ROUNDS = 6
BUDGET = confide.Budget(epsilon=1.0, delta=1e-5)
HIDDEN = 64


def _problem(name):
    if name == "Adult, logistic":
        split = data.adult()
        return models.logistic_regression(split.x.shape[1]), (split.x, split.y), 10_000
    split = data.mnist()
    x = np.asarray(split.x, np.float32).reshape(len(split.x), -1)
    x = x / 255 if x.max() > 1 else x
    return models.mlp((x.shape[1], HIDDEN, 10)), (x, np.asarray(split.y, np.int32)), 40


def steps():
    print(f"{'run':20}{'plain, us':>12}{'with, us':>12}{'ratio':>8}{'estimate, s':>13}")
    for name in ("Adult, logistic", "MNIST, network"):
        model, arrays, count = _problem(name)
        found = {}
        for watched in (False, True):
            asked = Options(steps=count, batch_size=256, clip=1.0, account=Accounts(bayesian=watched))
            found[watched] = plans.private_job(model, arrays, BUDGET, confide.sgld(), asked, noise.as_key(0))[0]
        times = {watched: [] for watched in found}
        for round in range(1 + (ROUNDS if count < 1000 else 5 * ROUNDS)):
            for watched, job in found.items():
                begun = time.perf_counter()
                loop.execute(job, arrays, jax.random.key(round))
                times[watched].append(time.perf_counter() - begun)
        plain, other = (np.array(times[watched][1:]) * 1e6 / count for watched in (False, True))
        begun = time.perf_counter()
        plans.typical(found[True], confide.guarantee(found[True].kernel.event(), delta=BUDGET.delta))
        estimate = time.perf_counter() - begun
        ratio = np.median(other / plain)
        print(f"{name:20}{plain.min():12.1f}{other.min():12.1f}{ratio:8.3f}{estimate:13.2f}", flush=True)


def estimate():
    distances = np.random.default_rng(0).uniform(0.0, 1.0, (10_000, 64)) ** 3
    for q in (1.0, 0.01):
        for estimator in ("published", "bounded"):
            settings = {"noise_scale": 50.0 if q == 1 else 2.0, "sampling_probability": q, "delta": 1e-5, "clip": 1.0}
            begun = time.perf_counter()
            epsilon = bayesian.bayesian_epsilon(distances, estimator=estimator, **settings)
            print(f"q = {q:<6g}{estimator:10} {time.perf_counter() - begun:6.2f} s   epsilon {epsilon:.3f}", flush=True)


def individual(keys=3):
    split = data.adult()
    model = models.logistic_regression(split.x.shape[1])
    longest = float(np.linalg.norm(split.x, axis=1).max())
    settings = [
        ("plain, defaults", {}, None),
        ("individual, defaults", {}, Individual()),
        ("plain, no gradient cut", {"clip": longest, "batch_size": len(split.x), "steps": 2000}, None),
        ("stretch 1", {"clip": longest, "steps": 2000}, Individual()),
        ("stretch 1.25", {"clip": longest, "steps": 2000}, Individual(stretch=1.25)),
        ("stretch 1.5", {"clip": longest, "steps": 2000}, Individual(stretch=1.5)),
        ("stretch 4", {"clip": longest, "steps": 5500}, Individual(stretch=4.0)),
    ]
    print(f"{'':24}{'clip':>6}{'accuracy':>10}{'log loss':>10}   epsilon of single records: 5, 50, 95, 100%   left out")
    for name, asked, wanted in settings:
        scores, spent, out = [], [], []
        for key in range(keys):
            asked_for = Options(account=Accounts(individual=wanted), **asked)
            planned = stochastic.make_plan(
                model, (split.x, split.y), BUDGET, confide.sgld(), asked_for, noise.as_key(0)
            )
            draws = planned.job.execute((split.x, split.y), jax.random.key(key))
            scores.append(_scores(draws[0], split))
            if wanted is not None:
                filter, seen = planned.job.observers.filter, planned.job.observations
                spent.append(np.quantile(filter.epsilons(seen.spent, BUDGET.delta), [0.05, 0.5, 0.95, 1.0]))
                out.append(np.mean(seen.spent >= filter.limit))
        accuracy, loss = np.mean(scores, axis=0)
        line = f"{name:24}{planned.job.parameters.clip:6.2f}{accuracy:10.4f}{loss:10.4f}"
        if spent:
            line += "   " + " ".join(f"{value:9.3f}" for value in np.mean(spent, axis=0)) + f"{np.mean(out):18.2%}"
        print(line, flush=True)


def _scores(draws, split):
    said = np.mean(1 / (1 + np.exp(-(split.test_x @ draws[::5].T))), axis=1)
    happened = split.test_y > 0.5
    return np.mean((said > 0.5) == happened), -np.mean(np.log(np.where(happened, said, 1 - said)))


if __name__ == "__main__":
    {"steps": steps, "estimate": estimate, "individual": individual}[sys.argv[1]]()
