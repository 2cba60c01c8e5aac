"""scikit-learn estimators of counts: each is a family of `confide.models.families` and its parameters.

>>> import numpy as np
>>> rng = np.random.default_rng(0)
>>> X = rng.uniform(0, 10, (2000, 1))
>>> y = rng.negative_binomial(2, 2 / (2 + np.exp(X[:, 0] / 5)))
>>> model = PrivateNegativeBinomialRegression(
...     epsilon=2.0, bounds=(0, 10), target_bounds=(0, 50), dispersion=0.5, steps=500, random_state=3
... )
>>> low, high = model.fit(X, y).predict([[0.0], [10.0]])
>>> bool(low < 3 < high < 15)
True
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from confide.app.estimators import _PrivateRegressor
from confide.data.bounds import Bounds
from confide.mechanism.noise import Noise
from confide.models import families
from confide.privacy.events import Neighbours
from confide.privacy.ledger import Ledger
from confide.samplers import Sampler
from confide.validation import Refused


@dataclass(kw_only=True, eq=False, repr=False)
class _PrivateCounts(_PrivateRegressor):
    epsilon: float = 1.0
    delta: float = 1e-5
    bounds: Any = None
    target_bounds: Any = None
    neighbours: Neighbours = "add-remove"
    prior_scale: float = 1.0
    clip: float | None = None
    steps: int | None = None
    batch_size: int | None = None
    chains: int = 1
    draws: int | None = None
    burn_in: int | None = None
    sampler: Sampler | None = None
    noise: Noise = "default"
    ledger: Ledger | str | os.PathLike[str] | None = None
    dataset: str | None = None
    random_state: int | None = None
    records: int | None = None

    def _known(self, target: Bounds) -> dict[str, Any]:
        low, high = float(target.low[0]), float(target.high[0])
        if low < 0 or not (low.is_integer() and high.is_integer()):
            raise Refused(f"target_bounds = ({low:g}, {high:g}) are not of counts: give whole numbers from 0 on")
        return self.get_params(deep=False) | {"largest_mean": high}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags


@dataclass(kw_only=True, eq=False, repr=False)
class PrivatePoissonRegression(_PrivateCounts):
    """Bayesian Poisson regression of counts with differential privacy.

    The mean is e^score, and no more than the upper bound of the target.

    Args:
        target_bounds: (low, high) of the counts, known without looking at the records; y is rounded and cut to it.
        prior_scale: standard deviation of the prior of the weights by the features as scaled to [-1, 1].

    The other arguments and the attributes are those of `PrivateLogisticRegression`; `coef_` and `intercept_` are of the
    logarithm of the mean.
    """

    _family = families.Poisson


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateNegativeBinomialRegression(_PrivateCounts):
    """Bayesian negative binomial regression of counts with differential privacy.

    The mean is m = e^score, and the variance m + dispersion m^2.

    Args:
        dispersion: by how much counts vary more than a Poisson would; `alpha` in statsmodels, 1 / `theta` in R.

    The other arguments and the attributes are those of `PrivatePoissonRegression`.
    """

    dispersion: float = 1.0

    _family = families.NegativeBinomial
