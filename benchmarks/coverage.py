"""Do 90% intervals hold the truth 90% of the time, and how much wider are they than the budget forces them to be?

    python benchmarks/coverage.py --family logistic --sampler sgld --d 5 --n 10000 --epsilon 0.5,2,8 --datasets 20
    python benchmarks/coverage.py --family poisson --sampler dpvi --grid monotone --json found.json

Any sampler, family and cell. Coefficients are drawn from the prior that the model has (intercept among them), data from
the model (`ideal.Cell` lists the designs), and `confide.fit` is run with all else default. All epsilons see the same
datasets, with other noise. A row of the table is one epsilon, with standard errors clustered by dataset:

- coverage: of central 90% intervals, over coefficients;
- width: the median of widths over 3.29 ideal standard deviations (benchmarks/ideal.py);
- error: the mean |posterior mean - truth|, and over that of the ideal;
- settled: the share of runs that say so of themselves; where only some do, a second row is about them alone;
- seconds of a median fit, and the epsilon spent.

A linear model's noise scale is unknown to the fit wherever the sampler can learn it, unless `--noise-known`; then a row
below is about it: coverage, width and error over those of the ideal.

Points and single draws have no interval. `--grid monotone` runs 40 datasets at epsilons from .25 to 64, and flags where
the error of the same datasets rises by more than two standard errors of its change.
"""

import json
import time
import warnings
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import numpy as np

import confide
import ideal

MONOTONE = "0.25,0.5,1,2,4,8,16,64"
LEVELS, WIDTH = (0.05, 0.95), 3.29  # of a Gaussian, in standard deviations
RESAMPLES = 500
PER_COEFFICIENT = ("inside", "width", "error", "sd")


def fitted(cell, given, epsilon, index):
    """One fit: its draws, shape (draws, coefficients), in the order of the true ones, and what else is told of it."""
    x, y, truth = cell.dataset(given.seed, index)
    settings = {"prior_scale": cell.prior_scale, "prior": cell.prior, "intercept": True, "norm_bound": cell.norm_bound}
    known = {} if cell.family == "linear" and not given.noise_known else cell.kind.parameters
    model = getattr(confide.models, cell.kind.name)(cell.d, **settings, **known)
    budget = confide.Budget(epsilon=epsilon, delta=given.delta, neighbours=given.neighbours)
    sampler = None if given.sampler == "default" else getattr(confide, given.sampler)(**json.loads(given.options))
    if cell.categories and not given.undeclared and given.sampler in ("default", "scoring"):
        sampler = confide.scoring(categories=cell.categories)  # as for a table, whose schema knows them
    if sampler is not None and not sampler.learns_noise_scale:
        model = getattr(confide.models, cell.kind.name)(cell.d, **settings, **cell.kind.parameters)
    asked = {} if given.chains is None else {"chains": given.chains}
    key = int(np.random.SeedSequence([given.seed, index, round(1e6 * epsilon)]).generate_state(1)[0] >> 1)
    start = time.perf_counter()
    found = confide.fit(model, (x, y), budget=budget, sampler=sampler, key=key, verbose=False, progress=False, **asked)
    seconds = time.perf_counter() - start
    parts = [np.asarray(found.draws["weights"]), np.asarray(found.draws["intercept"])[:, :, None]]
    draws = np.concatenate(parts, axis=2).reshape(found.chains * found.size, -1).astype(np.float64)
    settled = getattr(found, "settled", None)
    told = {
        "seconds": seconds,
        "settled": None if settled is None else bool(np.all(settled)),
        "epsilon": found.guarantee.epsilon,
        "interval": not found.point and len(draws) > 1,
    }
    if "noise_scale" in found.draws:
        told["noise_scales"] = np.ravel(found.draws["noise_scale"]).astype(np.float64)
    return draws, truth.ravel(), told


def run(cell, given, epsilon, index, sums):
    """What is kept of one fit: lists over its coefficients, and numbers."""
    draws, truth, told = fitted(cell, given, epsilon, index)
    strength = ideal.strength(epsilon, given.delta, given.neighbours)
    every, _ = ideal.sds(sums, strength, cell.prior_scales, truth.size)
    sd = every[: truth.size]
    low, high = np.quantile(draws, LEVELS, axis=0) if told["interval"] else np.full((2, truth.size), np.nan)
    mean = draws.mean(axis=0)
    kept = {
        "truth": truth,
        "mean": mean,
        "low": low,
        "high": high,
        "sd": sd,
        "rank": np.mean(draws < truth, axis=0),
        "inside": ((low <= truth) & (truth <= high)) + (0.0 if told["interval"] else np.nan),
        "width": (high - low) / (WIDTH * sd),
        "error": np.where(np.isfinite(mean), np.abs(mean - truth), np.inf),
    }
    if cell.kind.outputs:  # what classes have in common no data tell: it has the prior's coverage, whatever is learnt
        apart, known = (_from_common(each, cell.classes) for each in (draws, truth))
        low, high = np.quantile(apart, LEVELS, axis=0)
        told["contrasts"] = {"inside": float(np.mean((low <= known) & (known <= high)))}
        told["contrasts"] |= {
            "width": float(np.mean(high - low)),
            "error": float(np.mean(np.abs(apart.mean(0) - known))),
        }
    if (scales := told.pop("noise_scales", None)) is not None:
        low, high = np.quantile(scales, LEVELS)
        error = abs(float(np.mean(scales)) - cell.noise_scale)
        told["scale"] = {"inside": float(low <= cell.noise_scale <= high), "width": (high - low) / (WIDTH * every[-1])}
        told["scale"] |= {"error": error, "sd": every[-1]}
    return {name: values.tolist() for name, values in kept.items()} | told


def _from_common(coefficients, classes):
    """Of each class, less the mean over all of them."""
    each = coefficients.reshape(*coefficients.shape[:-1], -1, classes)
    return (each - each.mean(axis=-1, keepdims=True)).reshape(coefficients.shape)


def jackknife(statistic, *arrays):
    """A statistic of arrays with a row a dataset, and its standard error by leaving out one dataset at a time."""
    m = len(arrays[0])
    without = [statistic(*(np.delete(each, i, axis=0) for each in arrays)) for i in range(m if m > 1 else 0)]
    return statistic(*arrays), np.sqrt((m - 1) * np.var(without)) if m > 1 else np.nan


def bootstrap(statistic, array):
    """The same by drawing datasets again: leaving out one says little about a median."""
    rng, m = np.random.default_rng(0), len(array)
    again = [statistic(array[rng.integers(0, m, m)]) for _ in range(RESAMPLES)]
    return statistic(array), np.std(again) * np.sqrt(m / (m - 1)) if m > 1 else np.nan


def summary(runs):
    """The figures of a row, each with its standard error where it has one."""
    inside, width, error, sd = (np.array([each[name] for each in runs]) for name in PER_COEFFICIENT)
    said = [each["settled"] for each in runs if each["settled"] is not None]
    return {
        "datasets": len(runs),
        "coverage": jackknife(np.mean, inside),
        "width_ratio": bootstrap(np.median, width),
        "error": jackknife(np.mean, error),
        "error_ratio": jackknife(lambda error, sd: error.mean() / (ideal.EXPECTED_ERROR * sd.mean()), error, sd),
        "settled": float(np.mean(said)) if said else None,
        "seconds": float(np.median([each["seconds"] for each in runs])),
        "spent": float(np.max([each["epsilon"] for each in runs])),
        "scale": scale_summary(runs),
        "contrasts": contrast_summary(runs),
    }


def scale_summary(runs):
    """The same of noise scales that were learnt."""
    if "scale" not in runs[0]:
        return None
    inside, width, error, sd = (np.array([[each["scale"][name]] for each in runs]) for name in PER_COEFFICIENT)
    return {
        "coverage": jackknife(np.mean, inside),
        "width_ratio": bootstrap(np.median, width),
        "error": jackknife(np.mean, error),
        "error_ratio": jackknife(lambda error, sd: error.mean() / (ideal.EXPECTED_ERROR * sd.mean()), error, sd),
    }


def contrast_summary(runs):
    """Of softmax: coverage of what classes differ by, and its width and error."""
    if "contrasts" not in runs[0]:
        return None
    names = {"coverage": "inside", "width": "width", "error": "error"}
    return {
        key: jackknife(np.mean, np.array([each["contrasts"][name] for each in runs])) for key, name in names.items()
    }


HEADER = (
    f"{'epsilon':>8} {'datasets':>9} {'coverage':>14} {'width/ideal':>14} {'error':>18} {'error/ideal':>14} "
    f"{'settled':>8} {'s a fit':>8} {'spent':>8}"
)


def scale_row(found):
    told = [
        f"{name} {found[name][0]:.3f} ± {found[name][1]:.3f}" for name in ("coverage", "width_ratio", "error_ratio")
    ]
    return "  noise scale: " + ", ".join(told)


def row(label, found):
    def pair(name, digits, width):
        value, error = found[name]
        text = "-" if np.isnan(value) else f"{value:.{digits}f} ± {error:.{digits}f}"
        return f"{text:>{width}}"

    settled = "-" if found["settled"] is None else f"{found['settled']:.2f}"
    return (
        f"{label:>8} {found['datasets']:>9} {pair('coverage', 3, 14)} {pair('width_ratio', 2, 14)} "
        f"{pair('error', 4, 18)} {pair('error_ratio', 2, 14)} {settled:>8} {found['seconds']:>8.1f} "
        f"{found['spent']:>8.3g}"
    )


def rises(results):
    """How the error changes from one epsilon to the next, over the same datasets; those where it rises clearly."""
    flagged = []
    for (before, first), (after, second) in pairwise(results):
        pairs = {each["dataset"]: np.mean(each["error"]) for each in first}
        changes = np.array([np.mean(each["error"]) - pairs[each["dataset"]] for each in second])
        change, error = changes.mean(), changes.std(ddof=1) / np.sqrt(len(changes)) if len(changes) > 1 else np.nan
        rose = change > 2 * error
        flagged += [f"{before:g} to {after:g}"] if rose else []
        print(f"epsilon {before:g} to {after:g}: error {change:+.4f} ± {error:.4f}{'  RISES' if rose else ''}")
    return flagged


def main():
    parser = ideal.arguments("Coverage, width and error of private posteriors")
    parser.add_argument("--sampler", default="sgld", help="its name in confide; 'default' leaves the choice to fit")
    parser.add_argument("--options", default="{}", help="of the sampler, as JSON: '{\"draws\": 20}'")
    parser.add_argument("--chains", type=int)
    parser.add_argument("--noise-known", action="store_true", help="give the noise scale of a linear model to the fit")
    parser.add_argument("--undeclared", action="store_true", help="leave out that levels add up to the constant")
    parser.add_argument("--grid", choices=["monotone"], help="epsilons from .25 to 64, and whether the error falls")
    parser.add_argument("--json", type=Path, help="write everything that was found to this file")
    given, cell, epsilons = ideal.parse(parser)
    if given.grid:
        epsilons = [float(each) for each in MONOTONE.split(",")]
    datasets = given.datasets or (40 if given.grid else 20)
    warnings.simplefilter("ignore")  # of plans that will not settle: the table shows it
    sums = []
    for index in range(datasets):
        here = cell.of(given.seed, index)
        x, _, truth = here.dataset(given.seed, index)
        sums.append(ideal.sums(here.kind, ideal.with_constant(x), truth))
    title = {"sampler": given.sampler} | asdict(cell) | {"delta": given.delta, "neighbours": given.neighbours}
    print(" ".join(f"{name}={value}" for name, value in title.items()), f"chains={given.chains} seed={given.seed}")
    print(HEADER, flush=True)
    results, written = [], []
    for epsilon in epsilons:
        try:
            runs = [
                {"dataset": index} | run(cell.of(given.seed, index), given, epsilon, index, sums[index])
                for index in range(datasets)
            ]
        except confide.Refused as refusal:
            print(f"{epsilon:>8g} refused: {refusal}", flush=True)
            continue
        found = summary(runs)
        print(row(f"{epsilon:g}", found), flush=True)
        if found["scale"]:
            print(scale_row(found["scale"]), flush=True)
        if found["contrasts"]:
            told = [f"{name} {value:.3f} ± {error:.3f}" for name, (value, error) in found["contrasts"].items()]
            print("  what classes differ by: " + ", ".join(told), flush=True)
        settled = [each for each in runs if each["settled"]]
        alone = summary(settled) if settled else None
        if alone and len(settled) < len(runs):
            print(row("settled", alone), flush=True)
        results.append((epsilon, runs))
        written.append({"epsilon": epsilon, "all": found, "settled": alone, "runs": runs})
        if given.json:
            options = {name: str(value) if isinstance(value, Path) else value for name, value in vars(given).items()}
            given.json.write_text(json.dumps({"options": options, "cells": written}))
    if given.grid and (flagged := rises(results)):
        raise SystemExit(f"the error rises from epsilon {', '.join(flagged)}")


if __name__ == "__main__":
    main()
