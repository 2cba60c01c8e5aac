"""The likelihood ratio attack: how would models speak of this record with it, and how without it? (Carlini et al. 2022)

Of every record the log odds of its label, log p / (1 - p), are nearly normal over models that are fitted to other
records. The attacker's models give their law where the record was fitted ("in") and where it was not ("out"); the score
is the log ratio of the two densities at what the target says, or, offline, where no model has seen the record, how
far that is above the law of "out".

With few models a record's own variance is badly known. `variance` says what is done about it:

"each": every record has its own, in and out.
"global": all records have one variance in, and one out (Carlini et al.'s advice below 64 models).
"prior": an empirical Bayes compromise. The variances of records follow an inverse gamma law, the shifts from out to in
a normal law, and both laws are fitted to all records (the variances' by the moments of their logarithm, Smyth 2004).
What is known of one record is then its posterior, and the densities are Student's. Let a models be out and b in, with
means m_out and m_in, r the ratio of variance in to out, v the variance of a shift in units of the record's own s^2. The
shift is shrunk to d = d_0 + v / (v + 1/a + r/b) (m_in - m_out - d_0), and through it the two means borrow from one
another. It is the default: with few models it finds more than "each" does, which a test compares.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, special, stats

from confide import validation
from confide.audits.losses import among, distinct, labels, log_odds, probabilities, side
from confide.audits.pools import all_log_odds, code_labels, generator, halves, inside, shadow_count, trainer
from confide.audits.scores import Scores
from confide.validation import Refused

VARIANCES = ("global", "each", "prior")
LEAST = 1e-12  # of a variance, where models agree to the last digit
MOST = 1e6  # degrees of freedom, beyond which a Student's t is normal


class Law(NamedTuple):
    """Of the log odds of each record: location, scale and degrees of freedom."""

    location: np.ndarray
    scale: np.ndarray
    freedom: np.ndarray | float

    def log_density(self, values: np.ndarray) -> np.ndarray:
        return stats.t.logpdf((values - self.location) / self.scale, self.freedom) - np.log(self.scale)


def lira(
    target: Any,
    members: Any,
    nonmembers: Any,
    train: Any,
    shadows: int = 64,
    mode: str = "online",
    variance: str = "prior",
    data: Any = None,
    key: int = 0,
) -> Scores:
    """The likelihood ratio attack on a classifier.

    Args:
        target: a `Posterior`, a model with `predict_proba`, or a function from X to probabilities.
        members: records that the target was fitted to: (X, y).
        nonmembers: records of the same population that it was not fitted to.
        train: how shadow models are fitted, best as the target was; `networks`, `one_by_one`, or an estimator.
        shadows: how many, an even number: they come in pairs that share no record.
        mode: "online", where every attacked record is in half of the models, all of them fitted to halves of members,
            nonmembers and `data` together; or "offline", where the models are fitted to halves of `data` alone.
        variance: "prior", "global" or "each", as above.
        data: the attacker's own records of the population, (X, y); online it may be left out.
        key: a number that decides which records each model has; it has nothing to do with privacy.
    """
    validation.one_of(("online", "offline"), mode=mode)
    validation.one_of(VARIANCES, variance=variance)
    count, rng = shadow_count(shadows, 4), generator(key)
    one, two = distinct(members, nonmembers)
    attacked = np.concatenate([one[0], two[0]]), np.concatenate([one[1], two[1]])
    found = probabilities(target, attacked[0])
    seen = log_odds(found, labels(target, attacked[1], found.shape[-1]))
    pool = _pool(attacked, data, mode)
    (codes, code), _ = code_labels(pool, attacked)
    subsets = halves(len(pool[0]), count, rng)
    predict = trainer(train)(pool[0], codes, subsets, int(rng.integers(2**32)))
    told = all_log_odds(predict, attacked[0], code, count)
    if mode == "online":
        scores = online(seen, told, inside(subsets, len(pool[0]))[:, : len(seen)], variance)
    else:
        scores = offline(seen, told, variance)
    return Scores(
        members=scores[: len(one[0])],
        nonmembers=scores[len(one[0]) :],
        threshold=0.0 if mode == "online" else None,
        name=f"likelihood ratio, {mode}",
    )


def _pool(attacked: tuple[np.ndarray, np.ndarray], data: Any, mode: str) -> tuple[np.ndarray, np.ndarray]:
    """The records of the shadow models; online the attacked ones are the first."""
    if data is None:
        if mode == "offline":
            raise Refused("mode = 'offline' needs records that are not attacked: give data=(X, y)")
        return attacked
    own = side("data", data)
    if own[0].shape[1:] != attacked[0].shape[1:]:
        raise Refused(f"a row of data has shape {own[0].shape[1:]}, a member {attacked[0].shape[1:]}: give both alike")
    shared = int(np.sum(among(own, attacked)))
    if shared:
        raise Refused(f"{shared} records of data are attacked too: leave them out of data")
    return own if mode == "offline" else (np.concatenate([attacked[0], own[0]]), np.concatenate([attacked[1], own[1]]))


def online(seen: np.ndarray, told: np.ndarray, known: np.ndarray, variance: str) -> np.ndarray:
    """Log ratio of the densities in and out, from log odds by models (models, records) fitted to the records known."""
    (b, m_in, s_in), (a, m_out, s_out) = _moments(told, known), _moments(told, ~known)
    if variance == "each":
        law_in, law_out = Law(m_in, np.sqrt(s_in), MOST), Law(m_out, np.sqrt(s_out), MOST)
    elif variance == "global":
        law_in, law_out = (
            Law(m, np.sqrt(_pooled_variance(s, n)), MOST) for m, s, n in ((m_in, s_in, b), (m_out, s_out, a))
        )
    else:
        law_in, law_out = _shrunken((a, m_out, s_out), (b, m_in, s_in))
    return law_in.log_density(seen) - law_out.log_density(seen)


def offline(seen: np.ndarray, told: np.ndarray, variance: str) -> np.ndarray:
    """How many standard deviations the target is above models that have not seen a record: one-sided, so no density."""
    count, mean, square = _moments(told, np.ones(told.shape, bool))
    if variance == "global":
        square = np.full_like(square, _pooled_variance(square, count))
    elif variance == "prior":
        square, _ = _shrink(square, count - 1)
    return (seen - mean) / np.sqrt(square)


def _moments(told: np.ndarray, where: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How many models, their mean and variance for each record."""
    count = where.sum(axis=0)
    mean = np.sum(told, axis=0, where=where) / count
    square = np.sum((told - mean) ** 2, axis=0, where=where) / np.maximum(count - 1, 1)
    return count, mean, np.maximum(square, LEAST)


def _pooled_variance(squares: np.ndarray, counts: np.ndarray) -> float:
    return float(np.average(squares, weights=np.maximum(counts - 1, 1e-9)))


def _shrunken(out: tuple[np.ndarray, ...], fitted: tuple[np.ndarray, ...]) -> tuple[Law, Law]:
    """What is to be expected of the target, in and out; the algebra is in the module's docstring."""
    (a, m_out, s_out), (b, m_in, s_in) = out, fitted
    ratio = _pooled_variance(s_in, b) / _pooled_variance(s_out, a)
    freedom = a + b - 2
    square, more = _shrink(((a - 1) * s_out + (b - 1) * s_in / ratio) / freedom, freedom)
    noise, shift = 1 / a + ratio / b, m_in - m_out
    centre = float(np.mean(shift))
    spread = max(0.0, float(np.mean((shift - centre) ** 2) / np.mean(square) - np.mean(noise)))
    weight = spread / (spread + noise)
    shift = centre + weight * (shift - centre)
    left = weight * noise  # of the shift's variance
    share = a / (a + b / ratio)  # of the records out in what is known of the level
    level = share * m_out + (1 - share) * (m_in - shift)
    known = share / a  # variance of the level, given the shift
    scale_out = np.sqrt(square * (1 + known + (1 - share) ** 2 * left))
    scale_in = np.sqrt(square * (ratio + known + share**2 * left))
    return Law(level + shift, scale_in, more), Law(level, scale_out, more)


def _shrink(squares: np.ndarray, freedom: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Posterior variances and degrees of freedom, under an inverse gamma law that is fitted to all of the variances."""
    logs = np.log(squares) - special.digamma(freedom / 2) + np.log(freedom / 2)
    extra = float(np.var(logs, ddof=1) - np.mean(special.polygamma(1, freedom / 2))) if len(logs) > 1 else 0.0
    if extra <= 2 / MOST:  # no more than chance: all variances are equal
        own = MOST
    else:
        half: Any = optimize.brentq(lambda half: special.polygamma(1, half) - extra, 1e-6, MOST)
        own = 2 * float(half)
    centre = np.exp(np.mean(logs) + special.digamma(own / 2) - np.log(own / 2))
    return (own * centre + freedom * squares) / (own + freedom), own + freedom
