"""The optimal attack: the probability that a record was fitted, given the parameters (wu2020, after Sablayrolles 2019).

Lemma 1. Let theta be drawn from the posterior of the records S, or of S and z, the latter with probability lambda. Then
P(z was fitted | theta) = sigmoid(s + log(lambda / (1 - lambda))), with the measure score s = t(z) - l(z, theta), the
loss l(z, theta) = -log p(y | x, theta) and t(z) = -log E_S exp(-l(z, theta')), the loss of S's averaged prediction.

The proof is one line: the posterior of S and z has the density exp(-l(z, theta)) / E_S exp(-l(z, .)) with respect to
that of S. So the lemma needs what the paper assumes only for its Theorem 1: S holds every fitted record but z, theta
is one exact draw at temperature 1, and the loss is a log likelihood in full. Where S is a part of the fitted records,
the probability is a mean over what the others may be, and the lemma is an approximation.

**Correction (several draws).** The paper replaces theta by the average prediction of an ensemble, (9) and (10). But K
independent draws have K measure scores, which add up: P(z was fitted | theta_1, ..., theta_K) = sigmoid(s_1 + ... + s_K
+ log(lambda / (1 - lambda))). Nor is the average prediction alone as safe as (9) has it: with more and more draws it
tends to a limit that tells S from S and z for certain, so that the true leakage tends to 1 - lambda, while the right
hand side of (9) stays where it is. A test counts both in a world of three parameters. So `optimal` adds scores up where
the draws are released, and what `mpl` gives for an ensemble is the paper's number, not a bound of what leaks.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, logsumexp

from confide import validation
from confide.audits.losses import distinct, draw_losses, losses, mixture_loss
from confide.audits.scores import Scores
from confide.validation import Refused


class Mpl(NamedTuple):
    """Of each record: the probability that it was fitted, the membership privacy leakage, the paper's bound of it."""

    probability: np.ndarray
    loss: np.ndarray
    bound: np.ndarray


def measure(losses: Any, reference_losses: Any, weights: Any = None) -> np.ndarray:
    """The measure score s of each record under one draw; under several, that of their average prediction.

    Args:
        losses: l(z, theta) of each record under the attacked parameters; or (draws, records), of an ensemble.
        reference_losses: (draws, records), under draws of the posterior of the other records alone.
        weights: of the draws of an ensemble, for instance their step sizes; by default all are equal.
    """
    own, reference = _shape(losses, reference_losses)
    return mixture_loss(reference) - (_average_loss(own, weights) if own.ndim == 2 else own)


def mpl(losses: Any, reference_losses: Any, prior: float = 0.5, weights: Any = None) -> Mpl:
    """The membership privacy leakage max(P - prior, 0) of each record (wu2020, (4)), and its bound in the paper.

    Of one draw: Lemma 1, bounded by max(s / 4, 0), (7). Of an ensemble, whose losses are (draws, records): the same
    with the average prediction in the draw's place, bounded by (9) with the mean loss in place of t, (10). Mind the
    correction above: what an ensemble really leaks may be more than either.

    Args:
        losses: as in `measure`.
        reference_losses: as in `measure`.
        prior: lambda, the probability that a record was fitted before anything is known of it.
        weights: as in `measure`.

    >>> mpl([0.0, 1.0], [[1.0, 1.0], [1.0, 1.0]]).loss.round(4)
    array([0.2311, 0.    ])
    """
    own, reference = _shape(losses, reference_losses)
    prior = validation.probability(prior=prior)
    score = measure(own, reference, weights)
    probability = expit(score + _log_odds(prior))
    bound = score if own.ndim == 1 else np.mean(reference, axis=0) - _average_loss(own, weights)
    return Mpl(probability, np.maximum(probability - prior, 0), np.maximum(bound / 4, 0))


def optimal(target: Any, reference: Any, members: Any, nonmembers: Any, *, prior: float = 0.5) -> Scores:
    """The optimal attack on a model, given draws of the posterior of the other records.

    The score is the log odds of membership, and the threshold 0: the attack says "member" where that is more probable.

    Args:
        target: the attacked `Posterior`, all of whose draws are seen and taken for independent; or any predictor, whose
            prediction is taken for that of one draw.
        reference: a `Posterior` of the same model whose records are those of the target without the members that are
            attacked; few of them, since the lemma is exact for one. Its draws are the attacker's: the more the better.
        members: records that the target was fitted to and the reference was not: (X, y).
        nonmembers: records of the same population that neither was fitted to.
        prior: the probability that a record was fitted, before anything is known of it.
    """
    from confide.inference.posterior import Posterior

    shift = _log_odds(validation.probability(prior=prior))
    validation.instance(Posterior, reference=reference)

    def log_odds(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        own = draw_losses(target, x, y) if isinstance(target, Posterior) else losses(target, x, y)[None]
        return np.sum(mixture_loss(draw_losses(reference, x, y)) - own, axis=0) + shift

    one, two = (log_odds(x, y) for x, y in distinct(members, nonmembers))
    return Scores(members=one, nonmembers=two, threshold=0.0, name="optimal attack")


def theorem1(bound: float) -> float:
    """(B / 4) (exp(2 B) - 1), the constant of wu2020, Theorem 1, for losses of at most B in absolute value.

    The leakage is never above 1 - lambda, so the constant says something only below that: for lambda = 1/2 only while
    B < 0.684, so only for a model that gives each record's label a probability above 1/2. Nor is it the whole bound: it
    lacks terms in the step sizes that the paper gives by their order alone, O(1 / S + sum e^2 / S), so no
    number follows from the theorem. And it bounds what (9) defines for an ensemble, which is not all that leaks: see
    the correction above.

    >>> round(theorem1(0.5), 3), round(theorem1(5.0))
    (0.215, 27532)
    """
    value = validation.nonnegative(bound=bound)
    return math.inf if value > 300 else value / 4 * math.expm1(2 * value)


def _log_odds(prior: float) -> float:
    return math.log(prior) - math.log1p(-prior)


def _shape(losses: Any, reference_losses: Any) -> tuple[np.ndarray, np.ndarray]:
    try:
        own, reference = (np.asarray(given, np.float64) for given in (losses, reference_losses))
    except (TypeError, ValueError):
        raise Refused("losses and reference_losses are not arrays of numbers: give one for each record") from None
    if own.ndim not in (1, 2) or reference.ndim != 2 or own.shape[-1:] != reference.shape[1:] or not reference.size:
        raise Refused(
            f"losses have shape {own.shape} and reference_losses {reference.shape}: give (records,) or (draws, "
            "records), and (draws, records)"
        )
    for name, array in (("losses", own), ("reference_losses", reference)):
        lost = int(np.sum(~np.isfinite(array)))
        if lost or not array.size:
            raise Refused(f"{lost} of {array.size} {name} are not finite: floor the probabilities first")
    return own, reference


def _average_loss(each: np.ndarray, weights: Any) -> np.ndarray:
    """The loss of the average prediction."""
    if weights is None:
        return mixture_loss(each)
    positive = validation.positive_vector(weights=weights)
    if len(positive) != len(each):
        raise Refused(f"weights has length {len(positive)}: give one for each of the {len(each)} draws")
    return -np.asarray(logsumexp(-each, axis=0, b=(positive / positive.sum())[:, None]))
