"""What a generalised linear family is: everything that differs from one family to the next, as one frozen value.

Scores are s = x w, and the residual r is the gradient of the negative log likelihood by the scores. The families
themselves are in `confide.models.families`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

import jax
import numpy as np

Outcome = Literal["two labels", "labels", "number", "count"]
Array = Any  # of JAX, or of NumPy in double precision where it says so


@dataclass(frozen=True)
class Family:
    """One family of outcomes given a score, or several.

    Attributes:
        name: the model's, as it is stored.
        word: what the command line calls it.
        outcome: what is predicted. Labels have probabilities; a number is scaled to [-1, 1] by its public bounds, and
            its predictions are scaled back; a count stays what it is.
        effect: what a coefficient adds to, in words.
        residual_bound: the most that |r| can be, whatever the outcome; infinite where outcomes are unbounded.
        linear_moments: whether x x^T, x y and y^2 say all about the coefficients.

    `mean`, `predict`, `residual` and `curvature` are for arrays of JAX and, in double precision, of NumPy.
    """

    name: ClassVar[str]
    word: ClassVar[str]
    outcome: ClassVar[Outcome]
    kind: ClassVar[Literal["classification", "regression"]]
    effect: ClassVar[str]
    residual_bound: ClassVar[float] = math.inf
    linear_moments: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        cls.kind = "classification" if cls.outcome in ("two labels", "labels") else "regression"

    @property
    def parameters(self) -> dict[str, Any]:
        """The given ones, by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def learns_noise(self) -> bool:
        """Whether the noise scale is a parameter beside the coefficients, where a sampler can learn it."""
        return False

    def with_given_noise(self) -> Family:
        """The family as it is for whatever does not learn a noise scale."""
        return self

    def with_drawn(self, parameters: Any) -> Family:
        """The family at parameters that were drawn beside the coefficients, if there are any among these."""
        return self

    @property
    def outputs(self) -> tuple[int, ...]:
        """How many scores a record has; () for one."""
        return ()

    # Distribution of the outcome.

    def admits(self, y: np.ndarray) -> np.ndarray:
        """Which outcomes the family knows."""
        return np.ones(len(y), bool)

    def mean(self, s: Array) -> Array:
        raise NotImplementedError

    def variance(self, s: Array) -> Array:
        """Of the outcome; of labels, that of each indicator."""
        raise NotImplementedError

    def log_likelihood(self, s: jax.Array, y: jax.Array) -> jax.Array:
        """Of one record."""
        raise NotImplementedError

    def simulate(self, key: jax.Array, s: jax.Array) -> jax.Array:
        raise NotImplementedError

    def predict(self, s: Array) -> Array:
        """The mean, or the probabilities of all labels along a last axis."""
        return self.mean(s)

    # Derivatives of the negative log likelihood by the scores.

    def residual(self, s: Array, y: Array) -> Array:
        """The first derivative, for many records at once."""
        raise NotImplementedError

    def information(self, s: Array) -> Array:
        """Fisher's, of a score: E r^2 given s. Of several scores its matrix is diag v - v v^T, and this is v."""
        return self.variance(s)

    def curvature(self, s: Array, y: Array) -> Array:
        """The second derivative, written like the information, which it is where it does not depend on y."""
        return self.information(s)

    # Bounds.

    @property
    def refusal(self) -> str | None:
        """Why the curvature has no bound; None where it has one."""
        return None

    def smoothness(self, bound: float, clip: float) -> float:
        """The most curvature of a record by the weights, for rows within `bound` and gradients cut to `clip`."""
        raise NotImplementedError

    @property
    def residual_scale(self) -> float:
        """The most that the standard deviation of r can be, where r itself has no bound."""
        return math.inf

    @property
    def planned_residual(self) -> float | None:
        """The |r| that a planned clip is measured by; None: the clip is planned as for any other model."""
        return self.residual_bound if math.isfinite(self.residual_bound) else None

    @property
    def start_loss(self) -> float:
        """The negative log likelihood at s = 0 where that is the same for all outcomes and it is never below 0."""
        return math.inf

    def log_likelihood_bound(self, score: float) -> float:
        """The most that |log likelihood| can be for scores within this norm; infinite where outcomes are unbounded."""
        return math.inf

    # A bounded score that bends nothing.

    def bounded(self, s: Array, y: Array, threshold: Array, typical: float = 1.0) -> Array:
        """A residual of norm at most the threshold, whatever y is, with mean zero given s where the model is true.

        Cutting a residual by its own length moves its mean; see `confide.models.families`. `typical` is the information
        of a usual record, where the family needs one (`unknown_information`): residuals of others are weighted so that
        no record is steeper than such a one.
        """
        raise NotImplementedError

    def weighted_smoothness(self, bound: float, clip: float, typical: float = 1.0) -> float:
        """The most curvature of a record by the weights, for rows within `bound` and bounded scores of norm `clip`."""
        raise NotImplementedError

    @property
    def usual_residual(self) -> float:
        """The length of the residual of a usual record; where it is not known before, in units of its own."""
        raise NotImplementedError

    balance: ClassVar[tuple[float, float]] = (1.0, 1.0)
    """(a, b): scores that are bounded at a / (1 + b x) usual lengths have as much slope as variance and x times the
    square of the bound. What x is, and what for, is told where clips are planned (`confide.inference.plans.sizes`)."""

    longest_clip: ClassVar[float] = 3.0
    """In usual lengths of a score: hardly any is cut."""

    def bounded_loss(self, s: Array, y: Array, threshold: Array) -> Array:
        """A function whose derivative by s is `bounded`; for families with `convex_weights` and without
        `symmetric_errors`. It is small at s = 0, so that its difference from there loses no digits."""
        raise NotImplementedError

    convex_weights: ClassVar[bool] = False
    """Whether bounded scores are the gradient of a convex function, so that what rests on convexity may use them."""

    symmetric_errors: ClassVar[bool] = False
    """Whether `bounded` is the residual cut to the threshold, because errors are symmetric about the mean."""

    # What noisy sums of bounded scores tell: for one score a record.

    noise_aware: ClassVar[bool] = False
    """Whether what follows is known, so that the draws can know of the noise: `confide.scoring` is then the default."""

    def score_moments(self, s: np.ndarray, threshold: float, typical: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """E psi r and E psi^2 given s, psi what `bounded` is: its slope by s where the model is true, and its variance.

        E psi = 0 at every s, so that its derivative there, E[psi' - psi r], is 0 as well.
        """
        raise NotImplementedError

    def slope_of_mean(self, s: Array) -> Array:
        """The derivative of the mean by s."""
        return self.variance(s)

    def mean_over(self, centre: jax.Array, variance: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The mean over scores that are normal, and its derivative by their centre."""
        raise NotImplementedError

    def information_weight(self, s: Array, threshold: Array, typical: float = 1.0) -> Array:
        """About E psi r, and free of the outcome: what z z^T is multiplied by where the information is released."""
        raise NotImplementedError

    def information_bound(self, bound: float, clip: float, typical: float = 1.0) -> float:
        """The most that this weight times ||z||^2 is for rows within `bound`, whose threshold is clip / ||z||."""
        raise NotImplementedError

    def label_weight(self, s: Array, threshold: Array) -> Array:
        """What residuals of several scores are multiplied by, whatever the label."""
        raise NotImplementedError

    deep_clip: ClassVar[bool] = True
    """Whether hardly any information is lost where every score is cut."""

    shared_shift: ClassVar[bool] = False
    """Whether adding one number to all scores of a record changes nothing, so that no record tells it."""

    unknown_information: ClassVar[bool] = False
    """Whether the information of a usual record depends on outcomes whose size nobody declared."""

    # The loss with its residual cut to a threshold, for one score a record.

    def uncut_scores(self, y: np.ndarray, threshold: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The scores (low, high) between which the residual varies: below it is -threshold, above `upper_residual`."""
        raise NotImplementedError

    def upper_residual(self, y: np.ndarray, threshold: np.ndarray) -> np.ndarray:
        """The cut residual at every score above those of `uncut_scores`."""
        return threshold

    def loss_increment(self, start: Array, end: Array, y: Array) -> Array:
        """The negative log likelihood at the score `end` less that at `start`.

        It is computed from end - start and never as a difference of two log likelihoods. These can be so large that
        rounding makes their difference a staircase in the score, whose steps no bound on the gradient limits.
        """
        raise NotImplementedError
