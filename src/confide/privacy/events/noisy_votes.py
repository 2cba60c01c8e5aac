"""Labels by a noisy vote of models that were trained on records of their own: `confide.privacy.accountants.pate`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from confide import validation
from confide.privacy.events.base import Event, Neighbours, Parts, parts_of
from confide.validation import Refused

_APART = (
    "Every record was given to one of several models, drawn independently of all other records, and each model was "
    "trained on its own records alone; neither the models nor who was given what left the computation.",
    "The rows that the models voted on are public, and were chosen without looking at the records.",
)


@dataclass(frozen=True, kw_only=True, eq=False)
class NoisyVotes(Event):
    """At most `answers` labels, each the largest of the models' vote counts with noise on every count (GNMax).

    Before that, where there is a `check_noise`, at most `queries` comparisons of the largest count, with that noise,
    with a public threshold (Confident-GNMax). `figure_noise` is that on the logarithm of what the votes cost at the
    records at hand, in units of what one model can move it by. One record moves the votes of one model, under either
    relation.
    """

    answers: int
    answer_noise: float
    queries: int = 0
    check_noise: float | None = None
    figure_noise: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "answers", validation.count(answers=self.answers))
        object.__setattr__(self, "answer_noise", validation.positive(answer_noise=self.answer_noise))
        if (self.check_noise is None) != (self.queries == 0):
            raise Refused("queries are compared with a threshold, and that needs noise: give check_noise and queries")
        if self.check_noise is not None:
            object.__setattr__(self, "queries", validation.count(queries=self.queries))
            object.__setattr__(self, "check_noise", validation.positive(check_noise=self.check_noise))
        if self.figure_noise is not None:
            object.__setattr__(self, "figure_noise", validation.positive(figure_noise=self.figure_noise))

    def parts(self, neighbours: Neighbours) -> Parts:
        squared = 2 * self.answers / self.answer_noise**2
        if self.check_noise is not None:
            squared += self.queries / self.check_noise**2
        if self.figure_noise is not None:
            squared += self.figure_noise**-2.0
        return parts_of(squared_mu=squared)

    def fields(self) -> dict[str, Any]:
        return {
            "answers": self.answers,
            "answer_noise": self.answer_noise,
            "queries": self.queries,
            "check_noise": self.check_noise,
            "figure_noise": self.figure_noise,
        }

    def assumptions(self) -> tuple[str, ...]:
        found = [
            *_APART,
            f"At most {self.answers} labels were released, each after Gaussian noise of standard deviation "
            f"{self.answer_noise:.4g} at least was added to every count of votes.",
        ]
        if self.check_noise is not None:
            found.append(
                f"At most {self.queries} times the largest count was compared with a public threshold, after Gaussian "
                f"noise of standard deviation {self.check_noise:.4g} at least was added to it."
            )
        if self.figure_noise is not None:
            found.append(
                "What the votes cost at these records was released as a logarithm, with Gaussian noise of "
                f"{self.figure_noise:.4g} times at least what one model can move it by."
            )
        return tuple(found)

    def released(self) -> str:
        figure = "" if self.figure_noise is None else "what the votes cost at these records, "
        return (
            f"which public rows were labelled, their labels, {figure}and anything computed from them, as a student is"
        )

    def summary(self) -> str:
        checked = "" if self.check_noise is None else f", {self.queries} checks with noise {self.check_noise:.4g}"
        return f"{self.answers} labels by vote, noise {self.answer_noise:.4g}{checked}"

    def to_dp_accounting(self) -> Any:
        import dp_accounting

        return dp_accounting.GaussianDpEvent(self.parts("add-remove").squared_mu ** -0.5)
