"""The simplest attacks: a record that the model predicts well was probably fitted (Yeom et al. 2018).

They need the model's predictions and the mean of the members' scores, and nothing else. wu2020 measures with the first,
on the loss. (It divides the loss by its bound, which changes neither the order of the records nor any metric.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import xlogy

from confide import validation
from confide.audits.losses import FLOOR, distinct, kind, labels, losses, probabilities
from confide.audits.scores import Scores, vector
from confide.validation import Refused

SCORES = ("loss", "confidence", "entropy", "modified entropy")


def threshold_attack(member_losses: Any, nonmember_losses: Any) -> Scores:
    """Says "member" where the loss is at most the mean loss of the members: the attack of wu2020's tables.

    An infinite loss counts in that mean as -log 2^-52 = 36.04, the largest that `confide.audits.losses` gives.

    Args:
        member_losses: of records that were fitted, by any model.
        nonmember_losses: of records of the same population that were not.

    >>> scores = threshold_attack([0.1, 0.2, 0.9], [0.3, 0.8, 1.5])
    >>> round(scores.auc, 3), scores.accuracy, round(scores.threshold, 3)
    (0.778, 0.6666666666666666, -0.4)
    """
    members = vector("losses of members", member_losses)
    nonmembers = vector("losses of nonmembers", nonmember_losses)
    most = -float(np.log(FLOOR))
    mean = float(np.mean(np.nan_to_num(members, posinf=most, neginf=-most)))
    return Scores(members=-members, nonmembers=-nonmembers, threshold=-mean, name="threshold on the loss")


def threshold(predictor: Any, members: Any, nonmembers: Any, score: str = "loss") -> Scores:
    """Attack any model by one number that it gives for each record; the threshold is the mean over the members.

    Args:
        predictor: a `Posterior`, a model with `predict_proba`, or a function from X to probabilities.
        members: records that were fitted: (X, y).
        nonmembers: records of the same population that were not.
        score: "loss"; or "modified entropy" (Song and Mittal 2021), which is near 0 only for a confident prediction of
            the right label; or, for an attacker who does not know y, "confidence", the largest probability, or
            "entropy".

    >>> x = np.arange(8.0)[:, None]
    >>> scores = threshold(lambda x: np.hstack([1 - x / 8, x / 8]), (x[4:], [0, 1, 1, 1]), (x[:4], [1, 0, 1, 0]))
    >>> scores.auc
    0.6875
    """
    validation.one_of(SCORES, score=score)
    sides = distinct(members, nonmembers)
    if score == "loss":
        return threshold_attack(*(losses(predictor, x, y) for x, y in sides))
    if kind(predictor) != "classification":
        raise Refused(f"score = {score!r} needs probabilities of labels, and a regression has none: use 'loss'")
    one, two = (_score(predictor, x, y, score) for x, y in sides)
    return Scores(members=one, nonmembers=two, threshold=float(np.mean(one)), name=f"threshold on the {score}")


def _score(predictor: Any, x: np.ndarray, y: np.ndarray, score: str) -> np.ndarray:
    """Higher where the prediction is more certain."""
    found = probabilities(predictor, x)
    found /= found.sum(axis=1, keepdims=True)
    if score == "confidence":
        return np.max(found, axis=1)
    if score == "entropy":
        return np.sum(xlogy(found, found), axis=1)
    own = np.arange(found.shape[1]) == labels(predictor, y, found.shape[1])[:, None]
    wrong = np.where(own, 1 - found, found)  # what is left of the label's own, and what others have
    right = np.where(own, found, 1 - found)
    return np.sum(wrong * np.log(np.maximum(right, FLOOR)), axis=1)
