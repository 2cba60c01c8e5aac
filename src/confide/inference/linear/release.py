"""What scoring of a linear model released: all that its draws are made from, and anybody can make them again from it
alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from confide.inference import hamiltonian
from confide.inference.linear import likelihood, questions
from confide.inference.linear.likelihood import Rows, Told
from confide.inference.linear.questions import Answers, Frame, NoisePlan
from confide.inference.moments import Moments
from confide.inference.questions import Put, Question, Reply
from confide.inference.release import find_prior
from confide.inference.release_terms import Drawn, Terms, draws_key, spread_out
from confide.mechanism.linear_scale import LinearScaleRelease
from confide.mechanism.linear_sums import Cuts
from confide.mechanism.scale import ScaleAnswers, ScaleRelease
from confide.models.families import Gaussian
from confide.privacy import events

KIND = "learnt noise"
FORMAT = 4
CHAINS = 40
TRIED = 50  # moves before the middle of what is sampled is known
ARRAYS = (
    *("noise_multipliers", "information_multipliers", "first_information", "sums", "last_information"),
    *("root", "places"),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearRelease:
    """Options, noisy outcomes, and what was asked for them. Sums are of scores through the root, and of the scale's.
    Norm, first noise scale and all else that follows from the noisy counts is not stored."""

    # options and declared facts
    records: int  # as declared
    constant: int | None  # place of the parameter whose column is 1 in all rows
    prior_scale: float
    cuts: Cuts
    scale: ScaleRelease
    noise_multipliers: np.ndarray  # of each sum, over the bound of a record
    information_multipliers: np.ndarray  # the same of both matrices
    prior: str = "gaussian"  # of `release.PRIORS`, or OWN
    inflation: float = 1.0  # how much further from their mean draws of coefficients are than the likelihood says
    # noisy outcomes
    answers: ScaleAnswers  # noisy counts
    first_information: np.ndarray  # of rows over their norm
    sums: np.ndarray  # (sums, parameters + 1)
    last_information: np.ndarray  # through the root
    # what follows from the outcomes before it
    root: np.ndarray
    places: np.ndarray  # where sums were asked for: coefficients, and the noise scale

    @cached_property
    def frame(self) -> Frame:
        found = self._bought.read(self.answers, self.records)
        return questions.frame(self.records, self.constant, self.prior_scale, found, self.cuts)

    @property
    def _bought(self) -> LinearScaleRelease:
        return LinearScaleRelease(rows=self.scale)

    @property
    def key(self) -> int:
        """Of the draws: public."""
        return draws_key(self.answers)

    @property
    def plan(self) -> NoisePlan:
        return NoisePlan(self.noise_multipliers, self.information_multipliers)

    @property
    def noise(self) -> np.ndarray:
        """Standard deviation of every sum."""
        return self.plan.deviations(self.cuts)

    @property
    def information_noise(self) -> np.ndarray:
        """Standard deviations of the noise of both matrices, on their diagonals."""
        return self.plan.information_deviations(self.cuts)

    def terms(self) -> Terms:
        noise: dict[type[events.Event], Any] = {
            events.ScaleHistograms: np.array([self.scale.noise]),
            events.GaussianSchedule: self.noise_multipliers,
            events.InformationSums: self.information_multipliers,
        }
        plan = {
            "records": self.records,
            "model": Gaussian.name,
            "cuts": list(self.cuts),
            "noise_multipliers": self.noise_multipliers.tolist(),
            "information_multipliers": self.information_multipliers.tolist(),
        }
        settings = {"prior_scale": self.prior_scale, "prior": self.prior, "noise_scale": None}
        return Terms(plan | self.describe(self.scale.to_json()), settings, noise)

    def describe(self, scale: Mapping[str, Any]) -> dict[str, Any]:
        """What the plan says of the run once it is over."""
        found = self._bought.read(self.answers, self.records)
        return {"scale": {**scale, "norm": found.norm, "seen": found.seen}}

    def replay(self, put: Put) -> None:
        """Ask all questions again, of whoever answers them."""
        with jax.enable_x64(True):
            questions.ask_questions(self.frame, self.plan, len(self.root), put)

    def reply(self, question: Question) -> Reply:
        """The stored answer, and where it was asked for."""
        if question.kind == "noise":
            return Reply(self.places[question.number], self.root, self.sums[question.number])
        if question.number == 0:
            return Reply(question.position, question.root, self.first_information)
        return Reply(question.position, self.root, self.last_information)

    def to_json(self) -> dict[str, Any]:
        held = {name: getattr(self, name).tolist() for name in ARRAYS}
        return {
            "kind": KIND,
            "format": FORMAT,
            **{each.name: getattr(self, each.name) for each in fields(self)},
            **held,
            "cuts": list(self.cuts),
            "scale": asdict(self.scale),
            "answers": self.answers.to_json(),
        }

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> LinearRelease:
        if record["format"] != FORMAT:
            raise ValueError(f"its release has format {record['format']}, this version reads {FORMAT}")
        fields = {name: value for name, value in record.items() if name not in ("kind", "format")}
        arrays = {name: np.array(fields[name], np.float64) for name in ARRAYS}
        size, steps = len(arrays["root"]), arrays["noise_multipliers"].size
        square, several = (size, size), (steps, size + 1)
        shapes = {"first_information": square, "last_information": square, "root": square}
        shapes |= {"noise_multipliers": (steps,), "information_multipliers": (2,), "places": several, "sums": several}
        if any(arrays[name].shape != shape for name, shape in shapes.items()):
            raise ValueError("the arrays of its release do not fit together")
        if not all(np.all(np.isfinite(array)) for array in arrays.values()):
            raise ValueError("its release holds numbers that are not finite")
        known: dict[str, Any] = {
            **fields,
            **arrays,
            "cuts": Cuts(*fields["cuts"]),
            "scale": ScaleRelease(**fields["scale"]),
            "answers": ScaleAnswers.from_json(fields["answers"]),
        }
        made = cls(**known)
        made.frame  # noqa: B018
        return made

    def draw(self, draws: int, log_prior: Callable[[jax.Array], jax.Array] | None = None) -> np.ndarray:
        """So many draws of the coefficients and, last, the noise scale, and the same ones every time; in double."""
        with jax.enable_x64(True):
            found = self._draw(draws, log_prior or find_prior(self.prior, self.prior_scale))
        return np.column_stack([spread_out(found[:, :-1], self.inflation), found[:, -1]])

    def row_moments(self) -> Moments:
        """Mean and covariance of rows with their constant, as far as informations tell."""
        here = self.frame
        found = questions.geometry(here, self.first_information, self.information_noise[0], self.root)
        end = (self.last_information, self.information_noise[1])
        rows, _ = questions.correct(here, found, end)
        back = np.linalg.inv(found.root)
        return Moments(back @ np.asarray(rows.mean), back @ np.asarray(rows.covariance) @ back)

    def make(self, draws: int, log_prior: Callable[[jax.Array], jax.Array] | None = None) -> Drawn:
        """The same as they are stored."""
        drawn = self.draw(draws, log_prior).astype(np.float32)[None]
        return Drawn(drawn[..., :-1], drawn[..., -1])

    def _draw(self, draws: int, log_prior: Callable[[jax.Array], jax.Array]) -> np.ndarray:
        here = self.frame
        found = questions.geometry(here, self.first_information, self.information_noise[0], self.root)
        answers = Answers(questions.whiten(found.root, self.places), self.sums, self.noise**2)
        rows, doubt = questions.correct(here, found, (self.last_information, self.information_noise[1]))
        told, middle, precision = questions.locate(here, found.root, rows, answers, answers.positions[-1], doubt)
        spread = questions.invert_root(precision)
        tries, moves = jax.random.split(jax.random.key(self.key))
        chains = min(CHAINS, draws)
        asked, number = (log_prior, told, rows, chains), max(-(-draws // chains), TRIED)
        tried, _ = _sample(*asked, (middle, spread), tries, number)
        middle, spread = hamiltonian.measure(np.asarray(tried)[number // 2 :].reshape(-1, len(middle)))
        drawn, _ = _sample(*asked, (middle, spread), moves, number)
        every = np.asarray(drawn).reshape(-1, len(middle))[:draws]
        return np.column_stack([every[:, :-1] @ found.root, np.exp(np.clip(every[:, -1], -80.0, 80.0))])


@partial(jax.jit, static_argnames=("log_prior", "chains", "draws"))
def _sample(
    log_prior: Any, told: Told, rows: Rows, chains: int, middle: tuple[Any, Any], key: jax.Array, draws: int
) -> tuple[Any, Any]:
    def density(x: jax.Array, _: jax.Array) -> jax.Array:
        return likelihood.log_density(log_prior, told, rows, x)

    return hamiltonian.sample(density, jnp.zeros(chains), middle, key, draws)
