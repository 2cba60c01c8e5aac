"""Shadow models: what membership looks like is learnt from models of one's own (Shokri et al. 2017).

The attacker fits models to random halves of records that are like the target's, whose membership in these models is
known, and learns from what the models say of them to tell members from others. What is learnt is then asked about the
target. Nothing is ever learnt from the membership of the target's own records.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import xlogy

from confide.audits.losses import FLOOR, distinct, labels, log_odds, probabilities, side
from confide.audits.pools import code_labels, generator, halves, inside, said, shadow_count, trainer
from confide.audits.scores import Scores

MOST = 200_000  # pairs of a record and a model that the attack learns from


def shadow(
    target: Any, members: Any, nonmembers: Any, data: Any, train: Any, shadows: int = 64, key: int = 0
) -> Scores:
    """Attack a classifier by what shadow models say of records that they were fitted to, and of others.

    From every prediction the attack sees the log odds and the loss of the true label, whether it is the most probable,
    the log odds of the most probable and the entropy; it is a logistic regression on these, whose weights may differ
    between labels. The score is the log odds of membership by it, the threshold 0.

    Args:
        target: a `Posterior`, a model with `predict_proba`, or a function from X to probabilities.
        members: records that the target was fitted to: (X, y).
        nonmembers: records of the same population that it was not fitted to.
        data: the attacker's own records of that population, (X, y), best twice as many as the target was fitted to.
        train: how shadow models are fitted, best as the target was; `networks`, `one_by_one`, or an estimator.
        shadows: how many, an even number: they come in pairs that share no record.
        key: a number that decides which records each model has; it has nothing to do with privacy.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    count, rng = shadow_count(shadows, 2), generator(key)
    one, two = distinct(members, nonmembers)
    own = side("data", data)
    codes, kinds = code_labels(own, one, two)
    subsets = halves(len(own[0]), count, rng)
    predict = trainer(train)(own[0], codes[0], subsets, int(rng.integers(2**32)))
    asked = np.sort(rng.permutation(len(own[0]))[: max(2, MOST // count)])
    x, y = own[0][asked], codes[0][asked]
    features = said(predict, x, count, lambda found, part: _features(found, y[part], y[part], kinds))
    known = inside(subsets, len(own[0]))[:, asked]
    attack = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    attack.fit(features.reshape(-1, features.shape[-1]), known.reshape(-1))

    def score(x: np.ndarray, y: np.ndarray, code: np.ndarray) -> np.ndarray:
        found = probabilities(target, x)
        return attack.decision_function(_features(found, labels(target, y, found.shape[-1]), code, kinds))

    sides = (score(*pair, code) for pair, code in zip((one, two), codes[1:], strict=True))
    return Scores(members=next(sides), nonmembers=next(sides), threshold=0.0, name="shadow models")


def _features(found: np.ndarray, places: np.ndarray, code: np.ndarray, kinds: int) -> np.ndarray:
    """What a prediction shows, the same whatever the order of the labels; with the label's own weights for a part."""
    odds = log_odds(found, places)
    best = np.argmax(found, axis=-1)
    entropy = -np.sum(xlogy(found, np.maximum(found, FLOOR)), axis=-1)
    shown = [odds, np.logaddexp(0.0, -odds), best == places, log_odds(found, best), entropy]
    label = np.broadcast_to(np.eye(kinds)[code], (*odds.shape, kinds))
    return np.concatenate([np.stack(shown, axis=-1), label, label * odds[..., None]], axis=-1)
