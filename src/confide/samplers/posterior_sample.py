r"""One posterior sample: a draw from the posterior is private by itself (wang2015, Algorithm 1), as far as it is exact.

- `bound="tight"`: exp(-rho sum l_i - ||theta||^2 / (2 s^2)), l_i convex with gradients of norm at most G: the prior as
  it is, the likelihood to the power rho. One draw is (rho G s)-Gaussian-DP, whatever the number of records or
  parameters (Gopi, Lee and Liu 2022); replacing a record costs twice that.
- `bound="published"`: every log likelihood within [-B, B]; likelihood AND prior to the power rho = min(1, epsilon /
  (4 B)), as Algorithm 1 prints. Pure epsilon, so a budget of delta = 0 will do. B is enforced: by a ball that the
  parameters never leave, or by cutting the log likelihood of every record to [-B, B]. A prior of your own must have
  a finite integral at that power too, or there is nothing to draw from.

Both rest on the draw being exact, which no diagnostic of a Markov chain can prove: the guarantee says so. `langevin`
needs no such faith.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from confide import validation
from confide.mechanism.kernel import Kernel, MechanismParameters
from confide.samplers.sampler import Sampler
from confide.validation import Refused

Bound = Literal["tight", "published"]
Algorithm = Literal["elliptical", "nuts", "mala"]
BOUNDS: tuple[Bound, ...] = ("tight", "published")
ALGORITHMS: tuple[Algorithm, ...] = ("elliptical", "nuts", "mala")
FEWEST = 10  # transitions kept of a chain, for its diagnostics


@dataclass(frozen=True, kw_only=True)
class OnePosteriorSample(Sampler):
    """The settings of `confide.one_posterior_sample`; None is planned."""

    bound: Bound = "tight"
    draws: int = 1
    radius: float | None = None
    log_likelihood_bound: float | None = None
    total_variation: float = 0.0
    likelihood_power: float | None = None
    algorithm: Algorithm | None = None
    hidden_chains: int = 4
    warmup: int | None = None
    samples: int | None = None

    kind = "posterior sample"

    def __post_init__(self) -> None:
        validation.one_of(BOUNDS, bound=self.bound)
        if self.algorithm is not None:
            validation.one_of(ALGORITHMS, algorithm=self.algorithm)
        validation.count(draws=self.draws)
        if validation.count(hidden_chains=self.hidden_chains) < 2:
            raise Refused("hidden_chains = 1 cannot show whether the chains agree: give at least 2")
        validation.probability(zero=True, total_variation=self.total_variation)
        for name in ("radius", "log_likelihood_bound", "likelihood_power"):
            if getattr(self, name) is not None:
                validation.positive(**{name: getattr(self, name)})
        if self.warmup is not None:
            validation.count(warmup=self.warmup)
        if self.samples is not None and validation.count(samples=self.samples) < FEWEST:
            raise Refused(f"samples = {self.samples} are too few to compare the chains by: give {FEWEST} or more")
        if self.bound == "tight" and (self.radius is not None or self.log_likelihood_bound is not None):
            raise Refused("radius and log_likelihood_bound are for bound = 'published': leave them out")
        if self.radius is not None and self.log_likelihood_bound is not None:
            raise Refused("radius and log_likelihood_bound both bound the log likelihood: give one of them")

    @property
    def gaussian(self) -> bool:
        return self.bound == "tight"

    def step_sizes(self, steps: int) -> tuple[np.ndarray, bool]:
        raise _not_by_itself()

    def to_json(self) -> dict[str, Any]:
        return {"sampler": self.name, "bound": self.bound, "total_variation": self.total_variation}


def one_posterior_sample(
    bound: Bound = "tight",
    *,
    draws: int = 1,
    radius: float | None = None,
    log_likelihood_bound: float | None = None,
    total_variation: float = 0.0,
    likelihood_power: float | None = None,
    algorithm: Algorithm | None = None,
    hidden_chains: int = 4,
    warmup: int | None = None,
    samples: int | None = None,
) -> Sampler:
    """One exact draw from a tempered posterior, or a few, each paid for.

    Args:
        bound: "tight" for convex models with a Gaussian prior; "published" for any model, and for delta = 0.
        draws: the ends of the hidden chains; where there are more draws than chains, states of them far apart.
        radius: of the ball that the parameters are held in, for "published" logistic and softmax regression; by
            default prior_scale sqrt(parameters).
        log_likelihood_bound: for "published" and any model: what the log likelihood of every record is cut to.
        total_variation: the distance of the sampler from an exact one that you declare, counted in delta.
        likelihood_power: by default the largest that the budget pays for, and never above 1.
        algorithm: "elliptical" (generalised linear models, by default), "nuts" or "mala".
        hidden_chains: Markov chains that run beside one another; nothing but the draws leaves them.
        warmup: transitions of each chain before it is looked at.
        samples: transitions after that; the last one is the draw.

    >>> one_posterior_sample("published", radius=3.0).name
    'ops'
    """
    return OnePosteriorSample(
        name="ops",
        build=_build,
        bound=bound,
        draws=draws,
        radius=radius,
        log_likelihood_bound=log_likelihood_bound,
        total_variation=total_variation,
        likelihood_power=likelihood_power,
        algorithm=algorithm,
        hidden_chains=hidden_chains,
        warmup=warmup,
        samples=samples,
    )


def _build(sampler: Sampler, parameters: MechanismParameters, step_sizes: np.ndarray) -> Kernel:
    raise _not_by_itself()


def _not_by_itself() -> Refused:
    return Refused(
        "one_posterior_sample() is planned from a budget: use confide.fit, or sgld() for a run without a guarantee"
    )
