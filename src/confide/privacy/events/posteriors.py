r"""Draws from a posterior that are private by themselves.

With l_i the negative log likelihood of a record, ||grad l_i|| at most G everywhere, and neighbours that move the sum of
the gradients by Delta = G (add-remove) or 2 G (replace-one):

- `LastIterates`: full-batch Langevin dynamics on U = sum l_i + (lambda/2) ||theta||^2, of which only the iterates
  after the stated numbers of steps are released. From one release to the next the run starts at a public point, so the
  squares of mu add up, each by `confide.privacy.last_iterate`.
- `PosteriorSample`: an exact draw from exp(-power sum l_i - (lambda/2) ||theta||^2) is mu-GDP with
  mu = power Delta / sqrt(lambda), whatever the number of records or parameters (Gopi, Lee and Liu 2022).
- `BoundedPosteriorSample`: with |log likelihood| at most B, an exact draw from the posterior, likelihood and prior to
  the given power, is 4 power B-DP (wang2015, Theorem 1), for either relation.

**A sampler that is not exact.** If its distribution is within gamma in total variation of the exact one for every
dataset, then with f the trade-off curve of the exact pair and g(a) = 1 - f(a), any test S has
P'(S) - e^e Q'(S) <= gamma + g(q) - e^e (q - gamma) for some q >= gamma, or <= gamma + g(gamma). g is concave and starts
at zero, so g(q) <= g(gamma) + g(q - gamma), and both are at most gamma + g(gamma) + delta(e). A release that reveals
all with probability (gamma + g(gamma)) / (1 - delta(0)) and is exact otherwise dominates that at every e, so it
composes like any other. For mu-GDP g(gamma) = Phi(Phi^-1(gamma) + mu); for an epsilon-DP release the bound is (epsilon,
(1 + e^epsilon) gamma) itself (wang2015, Proposition 3).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from confide import validation
from confide.privacy.events.base import SENSITIVITY, Event, Neighbours, Parts, parts_of
from confide.privacy.events.releases import Release
from confide.privacy.last_iterate import last_iterate_mu
from confide.validation import Refused

LEAST_MU = 1e-100  # its square is still a number
MOST_ITERATES = 10**8  # held in arrays


@dataclass(frozen=True, kw_only=True, eq=False)
class LastIterates(Event):
    """Iterates of full-batch Langevin dynamics, released after `releases` steps; all others stay secret.

    `step_sizes` multiply the gradient of the whole potential: one number for all steps, or one for each step.

    >>> run = LastIterates(
    ...     step_sizes=1 / 8141.25, releases=(100_000,), strong_convexity=1.0, smoothness=8141.25, gradient_bound=1.0
    ... )
    >>> round(math.sqrt(run.parts("add-remove").squared_mu), 4)
    1.0
    """

    step_sizes: np.ndarray | float
    releases: tuple[int, ...]
    strong_convexity: float
    smoothness: float
    gradient_bound: float
    temperature: float = 1.0

    def __post_init__(self) -> None:
        validation.instance(tuple | list, releases=self.releases)
        releases = tuple(validation.count(releases=step) for step in self.releases)
        if not releases or any(later <= step for step, later in itertools.pairwise(releases)):
            raise Refused("releases do not rise: give the numbers of steps after which an iterate is released")
        if releases[-1] > MOST_ITERATES:
            raise Refused(f"releases reach {releases[-1]:g} steps: give at most {MOST_ITERATES:g}")
        object.__setattr__(self, "releases", releases)
        for name in ("strong_convexity", "smoothness", "gradient_bound", "temperature"):
            object.__setattr__(self, name, validation.positive(**{name: getattr(self, name)}))
        if self.smoothness < self.strong_convexity:
            raise Refused(
                f"smoothness = {self.smoothness:g} is below strong_convexity = {self.strong_convexity:g}: no function "
                "is less curved than it is convex"
            )
        sizes: Any = self.step_sizes
        if np.ndim(sizes) == 0:
            sizes = validation.positive(step_sizes=sizes)
        else:
            sizes = validation.positive_vector(step_sizes=sizes)
            if sizes.size != releases[-1]:
                raise Refused(f"step_sizes has {sizes.size} steps, but the last release is after {releases[-1]}")
        largest = 2 / (self.strong_convexity + self.smoothness)
        if np.max(sizes) > largest * (1 + 1e-12):
            raise Refused(
                f"step_sizes reach {np.max(sizes):g}, above 2 / (strong_convexity + smoothness) = {largest:g}, where "
                "steps no longer contract: make them smaller"
            )
        object.__setattr__(self, "step_sizes", sizes)

    def parts(self, neighbours: Neighbours) -> Parts:
        sensitivity = SENSITIVITY[neighbours] * self.gradient_bound
        equal = np.ndim(self.step_sizes) == 0
        sizes = np.broadcast_to(self.step_sizes, (self.releases[-1],))
        known: dict[int, float] = {}  # equal stretches of equal steps cost the same
        total = []
        for first, last in itertools.pairwise((0, *self.releases)):
            cost = known.get(last - first) if equal else None
            if cost is None:
                cost = known[last - first] = max(self._mu(sizes[first:last], sensitivity), LEAST_MU) ** 2
            total.append(cost)
        return parts_of(squared_mu=math.fsum(total))

    def _mu(self, sizes: np.ndarray, sensitivity: float) -> float:
        # What is lambda-strongly convex is also less so, and then a step that is too long by a rounding error is not.
        convexity = max(0.0, min(self.strong_convexity, 2 / float(np.max(self.step_sizes)) - self.smoothness))
        sizes = np.minimum(sizes, 1 / convexity) if convexity else sizes
        return last_iterate_mu(sizes, convexity, sensitivity, self.temperature)

    def until(self, step: int) -> LastIterates:
        """The same run, had it ended after `step` steps with the release of where it was."""
        before = tuple(release for release in self.releases if release < step)
        sizes = self.step_sizes if np.ndim(self.step_sizes) == 0 else self.step_sizes[:step]  # type: ignore[index]
        return LastIterates(**(self._settings() | {"releases": (*before, step), "step_sizes": sizes}))

    def _settings(self) -> dict[str, Any]:
        names = ("strong_convexity", "smoothness", "gradient_bound", "temperature")
        return {name: getattr(self, name) for name in names}

    def fields(self) -> dict[str, Any]:
        return {
            "step_sizes": np.asarray(self.step_sizes).tolist(),
            "releases": list(self.releases),
            **self._settings(),
        }

    def assumptions(self) -> tuple[str, ...]:
        return (
            "Every step used every record and added Gaussian noise of the stated temperature; the start and the step "
            "sizes did not depend on the records.",
            "Only the stated iterates left the computation: all iterates between them stayed secret and were deleted.",
            f"The negative log posterior that was sampled is {self.strong_convexity:.6g}-strongly convex and "
            f"{self.smoothness:.6g}-smooth, and no record's gradient is longer than {self.gradient_bound:.6g}, as the "
            "model, the prior, the norm bound of the rows and the clip imply.",
        )

    def released(self) -> str:
        which = "the last iterate" if len(self.releases) == 1 else f"the {len(self.releases)} stated iterates"
        return f"{which} of the run and no other, and anything computed from what is released"

    def summary(self) -> str:
        return f"{len(self.releases)} of {self.releases[-1]} Langevin iterates"


def _failure(gamma: float, mu: float) -> float:
    """What a sampler within gamma of the exact one may reveal outright (see above)."""
    if gamma == 0:
        return 0.0
    overlap = 2 * float(ndtr(-mu / 2))  # 1 - delta(0)
    caught = gamma + float(ndtr(ndtri(gamma) + mu))
    return min(1.0, caught / overlap) if overlap > 0 else 1.0


_EXACT = (
    "The released draws are taken to be exact and independent draws from the stated posterior: no diagnostic can prove "
    "that of Markov chain Monte Carlo, and if they are not, the guarantee does not hold as stated."
)


def _closeness(total_variation: float) -> str:
    if total_variation == 0:
        return _EXACT
    return (
        "The distribution of every released draw is within "
        f"{total_variation:.3g} of the stated posterior's in total variation, whatever the records and the draws "
        "released before it: this was declared, and is counted in delta; no diagnostic can prove it."
    )


def _draws_text(draws: int) -> str:
    return f"{draws} posterior draw{'' if draws == 1 else 's'}, and anything computed from what is released"


@dataclass(frozen=True, kw_only=True, eq=False)
class PosteriorSample(Event):
    """`draws` exact draws from exp(-likelihood_power sum l_i - (strong_convexity/2) ||theta||^2), l_i convex."""

    gradient_bound: float
    strong_convexity: float
    likelihood_power: float = 1.0
    draws: int = 1
    total_variation: float = 0.0

    def __post_init__(self) -> None:
        for name in ("gradient_bound", "strong_convexity", "likelihood_power"):
            object.__setattr__(self, name, validation.positive(**{name: getattr(self, name)}))
        object.__setattr__(self, "draws", validation.count(draws=self.draws))
        distance = validation.probability(zero=True, total_variation=self.total_variation)
        object.__setattr__(self, "total_variation", distance)

    def parts(self, neighbours: Neighbours) -> Parts:
        sensitivity = SENSITIVITY[neighbours] * self.gradient_bound
        mu = max(self.likelihood_power * sensitivity / math.sqrt(self.strong_convexity), LEAST_MU)
        failure = _failure(self.total_variation, mu)
        survival = self.draws * math.log1p(-failure) if failure < 1 else -math.inf
        return parts_of(squared_mu=self.draws * mu**2, failure=-math.expm1(survival))

    def fields(self) -> dict[str, Any]:
        return {
            "gradient_bound": self.gradient_bound,
            "strong_convexity": self.strong_convexity,
            "likelihood_power": self.likelihood_power,
            "draws": self.draws,
            "total_variation": self.total_variation,
        }

    def assumptions(self) -> tuple[str, ...]:
        return (
            "The negative log likelihood of a record is convex with a gradient no longer than "
            f"{self.gradient_bound:.6g}, and the negative log prior is {self.strong_convexity:.6g}-strongly convex, as "
            "the model, the norm bound of the rows and the clip imply.",
            _closeness(self.total_variation),
        )

    def released(self) -> str:
        return _draws_text(self.draws)

    def summary(self) -> str:
        return (
            f"{self.draws} posterior draw{'s' if self.draws > 1 else ''}, likelihood power {self.likelihood_power:.4g}"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class BoundedPosteriorSample(Event):
    """`draws` exact draws from a posterior to the given power, where |log likelihood| of a record is bounded."""

    log_likelihood_bound: float
    power: float = 1.0
    draws: int = 1
    total_variation: float = 0.0

    def __post_init__(self) -> None:
        for name in ("log_likelihood_bound", "power"):
            object.__setattr__(self, name, validation.positive(**{name: getattr(self, name)}))
        object.__setattr__(self, "draws", validation.count(draws=self.draws))
        distance = validation.probability(zero=True, total_variation=self.total_variation)
        object.__setattr__(self, "total_variation", distance)

    def parts(self, neighbours: Neighbours) -> Parts:
        epsilon = 4 * self.power * self.log_likelihood_bound
        failure = min((1 + math.exp(min(epsilon, 700.0))) * self.total_variation, 1 - 1e-16)
        one = Release(epsilon=epsilon, delta=failure, neighbours=neighbours).parts(neighbours)
        survival = self.draws * math.log1p(-one.failure)
        return one._replace(epsilon_counts=self.draws * one.epsilon_counts, failure=-math.expm1(survival))

    def fields(self) -> dict[str, Any]:
        return {
            "log_likelihood_bound": self.log_likelihood_bound,
            "power": self.power,
            "draws": self.draws,
            "total_variation": self.total_variation,
        }

    def assumptions(self) -> tuple[str, ...]:
        return (
            f"The log likelihood of a record lies within {self.log_likelihood_bound:.6g} of zero, whatever the record "
            "and the parameters.",
            _closeness(self.total_variation),
        )

    def released(self) -> str:
        return _draws_text(self.draws)

    def summary(self) -> str:
        return f"{self.draws} posterior draws of bounded likelihood, power {self.power:.4g}"
