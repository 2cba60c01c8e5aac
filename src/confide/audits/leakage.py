"""Whether gradients tell the records that were fitted from others: the test of triastcyn2020, section 5.2.

Bayesian accounting derives its price from distances between the gradients of records, ||g_i - g_j||, so the price
could tell who was in the data. The paper holds that in practice it does not (4.4.3): after training, the distances
within the training set look like those within a test set, to a t-test of equal means and Levene's of equal variances.

**When the p-values are what they seem.** Let theta be the draw. Null hypothesis: given theta, the records of both
sides are exchangeable. Pair them so that none is in two pairs; then which pairs are called "train" is a labelling at
random of distances that have one law, whose permutation distribution makes Welch's t asymptotically normal, and the
p-values uniform. (Means need a variance: with a clip, no distance is above 2 clip.) Pairs that share records have no
such law. All n (n - 1) / 2 of them together have a mean whose variance falls with n, as that of any U-statistic, and
not with their number, by which a t-test would divide: it would find differences everywhere. So there are at most n // 2
pairs a side. Distances are skewed, so Levene's test takes deviations from medians (Brown and Forsythe 1974), and
Welch's does not take the variances for equal.

**What it cannot see.** A shift that all gradients of a side have in common leaves every distance as it is, and a fit
makes just such a shift: at the mode the gradients of the fitted records add up to that of the prior, those of others
do not. One person among thousands does not move a mean. And p > 0.05 is no evidence of absence, so the result holds
the smallest difference that would have been noticed. No guarantee is proved or refuted here.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from confide import validation
from confide.inference import plans
from confide.inference.posterior import NotPrivateWarning, Posterior
from confide.mechanism import noise
from confide.mechanism.clipping import clipped_sum
from confide.mechanism.per_example import Batch
from confide.models.inputs import check_data
from confide.models.model import Model
from confide.validation import Refused

FEWEST = 20  # pairs a side, for means that are nearly normal
NUMBERS = 2**22  # of gradients held at once, a side of the pairs
LEVEL, POWER = 0.05, 0.8
COLOURS = {"fitted": "#D55E00", "others": "#0072B2"}  # Okabe and Ito's


@dataclass(frozen=True, kw_only=True)
class Leakage:
    """What `confide.leakage_test` found. It depends on the records, and NO guarantee covers it: not to be published.

    Its `repr`, which notebooks show by themselves, says nothing of it; `print` says all.

    Attributes:
        train_mean, test_mean: of the distances between the gradients of two records.
        train_sd, test_sd: their standard deviations.
        mean_p: of Welch's t-test, that the means are equal.
        spread_p: of Levene's test, that the variances are equal.
        detectable: the smallest difference of means that would have been noticed with a probability of 80%.
        clip: what gradients were cut to; None for as they are.
        train_distances, test_distances: one for each pair.
    """

    train_mean: float
    test_mean: float
    train_sd: float
    test_sd: float
    mean_p: float
    spread_p: float
    detectable: float
    clip: float | None
    train_distances: np.ndarray = field(compare=False)
    test_distances: np.ndarray = field(compare=False)

    def __repr__(self) -> str:
        pairs = f"{len(self.train_distances)} fitted and {len(self.test_distances)} other pairs"
        return f"<Leakage: {pairs}, NOT TO BE PUBLISHED; print it to see it>"

    def __str__(self) -> str:
        return "\n".join(self.sentences())

    def sentences(self) -> tuple[str, ...]:
        """The result in plain language, with what it does not say."""
        cut = "as they are" if self.clip is None else f"clipped to {self.clip:.4g}"
        share = f" ({self.detectable / self.test_mean:.1%} of that of the others)" if self.test_mean > 0 else ""
        return (
            "Not to be published: this was computed from the records themselves, unpaid, and no guarantee covers it.",
            f"The gradients ({cut}) of two fitted records are {self.train_mean:.4g} apart on average "
            f"(sd {self.train_sd:.3g}, {len(self.train_distances)} pairs), those of two others {self.test_mean:.4g} "
            f"(sd {self.test_sd:.3g}, {len(self.test_distances)} pairs).",
            f"Equal means: p = {self.mean_p:.3g} (Welch's t-test). "
            f"Equal variances: p = {self.spread_p:.3g} (Levene's test).",
            self._verdict(),
            f"A difference of means of {self.detectable:.3g}{share} would have been noticed with a probability of "
            f"{POWER:.0%}; a smaller one more seldom.",
            "No record is in two pairs: the tests take distances for independent, and pairs that share records are "
            "not.",
            "The test is blind to a shift that all gradients have in common, and to single persons among many: it "
            "neither proves nor refutes a guarantee.",
        )

    def _verdict(self) -> str:
        if min(self.mean_p, self.spread_p) < LEVEL:
            return (
                "Fitted records and others differ: the draw tells them apart, or they were not drawn alike to begin "
                f"with, or it is chance: where nothing differs, each test says otherwise in {LEVEL:.0%} of all cases."
            )
        return "No difference was seen, which does not prove that there is none."

    def figure(self) -> Any:
        """A matplotlib figure with the histograms of both sides, as Figure 2 of the paper. Not to be published."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6, 3.6), layout="constrained")
        FigureCanvasAgg(figure)  # drawn without a display
        axes = figure.subplots()
        both = np.concatenate([self.train_distances, self.test_distances])
        places = min(40, max(10, round(math.sqrt(len(both)))))
        bins = np.histogram_bin_edges(both, bins=places).tolist()
        sides: tuple[tuple[str, np.ndarray, float, str, dict[str, Any]], ...] = (
            ("fitted", self.train_distances, self.train_mean, "-", {"alpha": 0.4}),
            ("others", self.test_distances, self.test_mean, "--", {"histtype": "step", "linewidth": 1.5}),
        )
        for name, distances, mean, line, look in sides:
            label = f"{name}: mean {mean:.3g}, {len(distances)} pairs"
            axes.hist(distances, bins=bins, density=True, color=COLOURS[name], label=label, **look)
            axes.axvline(mean, color=COLOURS[name], linestyle=line)
        axes.set_xlabel("distance between the gradients of two records")
        axes.set_ylabel("density")
        axes.set_title(
            f"NOT TO BE PUBLISHED\nequal means: p = {self.mean_p:.2g}; equal variances: p = {self.spread_p:.2g}",
            fontsize="medium",
        )
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
        return figure


def leakage_test(
    posterior: Posterior,
    train: Any,
    test: Any,
    *,
    pairs: int = 2000,
    clip: float | None = None,
    draw: int = -1,
    key: Any = None,
) -> Leakage:
    """Compare distances between gradients of fitted records with those between others (triastcyn2020, section 5.2).

    The result is computed from the records and NOT PRIVATE, whatever the guarantee of the posterior: a
    `NotPrivateWarning` says so. Gradients are of the log likelihood, by the parameters as they are sampled, cut
    without the preconditioner of `psgld` and `sgfs`.

    Args:
        posterior: of any model.
        train: the records that were fitted, or some of them: (X, y).
        test: records of the same population that were not fitted.
        pairs: the most that are compared a side; no record is in two, so n records give n // 2.
        clip: what gradients are cut to; by default what the run cut them to, if it did; `math.inf` for not at all.
        draw: which draw, all chains one after the other; by default the last of the last chain.
        key: a number that decides which records are paired, to be fixed before looking, since another gives another p;
            it has nothing to do with privacy.
    """
    validation.instance(Posterior, posterior=posterior)
    model, most, cut = posterior.model, validation.count(pairs=pairs), _clip(posterior, clip)
    if model is None:
        raise Refused("the posterior has no model: give the one that was fitted to Posterior.load(path, model=)")
    fitted, others = check_data(model, train), check_data(model, test)
    _check_alike(fitted, others)
    start, unravel = plans.unraveller(model, fitted, noise.as_key(0))
    plans.trace_model(model, fitted, start, unravel)
    position = _position(posterior, model, draw, unravel(start))
    whole = noise.as_key(key)
    drawn = [
        disjoint(noise.derive_key(whole, name), len(data[0]), most, name)
        for name, data in (("train", fitted), ("test", others))
    ]
    warnings.warn(
        "confide.leakage_test computes from the records, unpaid: its result must not be published, whatever the "
        "guarantee of the posterior.",
        NotPrivateWarning,
        stacklevel=2,
    )
    places = max(1, min(max(map(len, drawn)), NUMBERS // position.size))
    gradients = clipped_sum(model, cut, unravel, 1)  # no sum is taken, whose rounding would need room below the clip

    @jax.jit
    def apart(position: jax.Array, one: tuple[jax.Array, ...], two: tuple[jax.Array, ...]) -> Any:
        both = (Batch(rows, jnp.ones(places, bool), None) for rows in (one, two))
        (first, known), (second, also) = (gradients.per_example.rows(position, b, gradients.limit) for b in both)
        return jnp.where(known & also, jnp.linalg.norm(first - second, axis=1), jnp.nan)

    def distances(name: str, data: tuple[np.ndarray, ...], chosen: np.ndarray) -> np.ndarray:
        found = []
        for begin in range(0, len(chosen), places):
            some = np.resize(chosen[begin : begin + places], (places, 2))  # the last is filled up: one shape
            one, two = (tuple(array[side] for array in data) for side in some.T)
            found.append(np.asarray(apart(position, one, two), np.float64)[: len(chosen) - begin])
        result = np.concatenate(found)
        lost = int(np.sum(~np.isfinite(result)))
        if lost:
            raise Refused(
                f"{lost} of {len(result)} pairs of {name} have gradients that are not finite: scale the data, or "
                "choose another draw"
            )
        return result

    return compare(
        distances("train", fitted, drawn[0]),
        distances("test", others, drawn[1]),
        clip=None if math.isinf(cut) else cut,
    )


def compare(train: np.ndarray, test: np.ndarray, clip: float | None = None) -> Leakage:
    """Both tests, from the distances of pairs that share no record."""
    from scipy import stats

    sides = [np.array(side, np.float64) for side in (train, test)]
    for side in sides:
        side.setflags(write=False)
    if not any(np.ptp(side) for side in sides):
        raise Refused("no distance differs from the others of its side: there is no spread to judge a difference by")
    means, sds = [float(np.mean(side)) for side in sides], [float(np.std(side, ddof=1)) for side in sides]
    sizes = [len(side) for side in sides]
    welch = stats.ttest_ind_from_stats(means[0], sds[0], sizes[0], means[1], sds[1], sizes[1], equal_var=False)
    with np.errstate(divide="ignore", invalid="ignore"):  # deviations that do not vary
        spread = float(stats.levene(*sides, center="median").pvalue)
    shares = [sd**2 / size for sd, size in zip(sds, sizes, strict=True)]
    freedom = sum(shares) ** 2 / sum(share**2 / (size - 1) for share, size in zip(shares, sizes, strict=True))
    quantiles = stats.t.ppf([1 - LEVEL / 2, POWER], freedom)
    return Leakage(
        train_mean=means[0],
        test_mean=means[1],
        train_sd=sds[0],
        test_sd=sds[1],
        mean_p=float(welch.pvalue),
        spread_p=1.0 if math.isnan(spread) else spread,
        detectable=float(np.sum(quantiles)) * math.sqrt(sum(shares)),
        clip=clip,
        train_distances=sides[0],
        test_distances=sides[1],
    )


def _clip(posterior: Posterior, clip: float | None) -> float:
    if isinstance(clip, float) and clip == math.inf:
        return clip
    if clip is not None:
        return validation.positive(clip=clip)
    return float(posterior.plan.get("clip") or math.inf)


def _check_alike(train: tuple[np.ndarray, ...], test: tuple[np.ndarray, ...]) -> None:
    """Records of one kind, and not the same ones."""
    kinds = [[(array.shape[1:], array.dtype.name) for array in side] for side in (train, test)]
    if kinds[0] != kinds[1]:
        told = [", ".join(f"{kind} {shape}" for shape, kind in side) for side in kinds]
        raise Refused(f"a record of train is {told[0]} and one of test {told[1]}: give records of one kind")
    if all(np.array_equal(one, two) for one, two in zip(train, test, strict=True)):
        raise Refused("train and test are the same records: give as test records that were not fitted")


def disjoint(key: jax.Array, n: int, most: int, name: str) -> np.ndarray:
    """Rows of two places each, no place twice."""
    count = min(most, n // 2)
    if count < FEWEST:
        raise Refused(
            f"{n} records of {name} and pairs = {most} give {count} pairs: at least {FEWEST} are needed, of "
            f"{2 * FEWEST} records"
        )
    seed = np.asarray(jax.random.key_data(key))
    return np.random.default_rng(seed).permutation(n)[: 2 * count].reshape(count, 2)


def _position(posterior: Posterior, model: Model, draw: int, start: Any) -> jax.Array:
    """The draw as flat parameters, as they are sampled."""
    size = posterior.chains * posterior.size
    if isinstance(draw, bool) or not isinstance(draw, (int, np.integer)) or not -size <= draw < size:
        raise Refused(f"draw = {draw!r} is not one of the {size} draws: give a whole number from {-size} to {size - 1}")
    return ravel_pytree(model.unconstrain(jax.tree.map(lambda leaf: leaf[draw], align(posterior, model, start))))[0]


def align(posterior: Posterior, model: Model, start: Any) -> Any:
    """The draws of all chains along one axis, as parameters of the model, as they are reported.

    Leaves go by name: files keep a named tuple as a dict.
    """
    size = posterior.chains * posterior.size
    named, structure = jax.tree_util.tree_flatten_with_path(model.constrain(start))
    found = {_route(keys): np.asarray(leaf) for keys, leaf in jax.tree_util.tree_flatten_with_path(posterior.draws)[0]}
    wanted = {_route(keys): np.shape(leaf) for keys, leaf in named}
    if wanted != {route: leaf.shape[2:] for route, leaf in found.items()}:
        raise Refused("the draws are not parameters of the posterior's model: give the model that was fitted")
    leaves = [found[_route(keys)].reshape(size, *np.shape(leaf)) for keys, leaf in named]
    return jax.tree.unflatten(structure, [jnp.asarray(leaf, jnp.float32) for leaf in leaves])


def _route(keys: Any) -> tuple[str, ...]:
    return tuple(str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in keys)
