"""What private scoring released: all that its draws are made from, and anybody can make them again from it alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from confide.inference import designs, frames, hamiltonian, noise_aware, scoring
from confide.inference.expected_scores import Rows
from confide.inference.frames import Frame
from confide.inference.moments import Moments
from confide.inference.noise_aware import Told
from confide.inference.questions import Put, Question, Reply
from confide.inference.release_terms import Drawn, Terms, draws_key, spread_out
from confide.inference.row_spaces import row_space
from confide.inference.scoring import Answers
from confide.mechanism import query_grid
from confide.mechanism.scale import ScaleAnswers, ScaleRelease
from confide.models import families
from confide.models.priors import WIDE
from confide.privacy import events
from confide.validation import Refused

FORMAT = 4
TRIED = 60  # moves before the middle of a prior of one's own is known
ARRAYS = (
    *("noise", "information_multipliers", "first_information", "sums", "last_information"),
    *("root", "positions", "last_position"),
)


@dataclass(frozen=True)
class NormalPrior:
    """Independent and normal about 0: equal ones are one program. So many parameters come first, of an intercept."""

    scale: float
    first: int = 0
    first_scale: float = 1.0

    def __call__(self, theta: jax.Array) -> jax.Array:
        own, others = theta[: self.first] / self.first_scale, theta[self.first :] / self.scale
        return -0.5 * (jnp.sum(jnp.square(own)) + jnp.sum(jnp.square(others)))


@dataclass(frozen=True)
class LaplacePrior:
    """Independent and Laplace about 0."""

    scale: float

    def __call__(self, theta: jax.Array) -> jax.Array:
        return -jnp.sum(jnp.abs(theta)) / self.scale


PRIORS = ("gaussian", "laplace", "wide_intercept")  # that a file tells all about
OWN = "own"  # prior, a function that no file holds


def find_prior(name: str, scale: float, outputs: int = 1) -> Callable[[jax.Array], jax.Array]:
    """The prior of draws, where it is stored; an intercept comes first, with as many parameters as there are scores."""
    if name not in PRIORS:
        raise Refused("the prior of these draws is a function, which is not stored: give it as log_prior")
    if name == "laplace":
        return LaplacePrior(scale)
    return NormalPrior(scale) if name == "gaussian" else NormalPrior(scale, outputs, WIDE * scale)


class Concluded(NamedTuple):
    """What is concluded from a release before anything is drawn."""

    root: np.ndarray
    rows: Rows
    told: Told
    middle: np.ndarray  # the mode
    spread: np.ndarray  # and its covariance


@dataclass(frozen=True, kw_only=True, eq=False)
class Release:
    """Options, noisy outcomes in the order in which they were drawn, and what was asked for them.

    Sums and their noise are in units of the clip, as rows through the root are. Where rows have a space
    (`row_spaces.row_space`), positions, root and matrices are in its coordinates. Norm, clip and all else that follows
    from the noisy counts is not stored.
    """

    # options and declared facts
    family: dict[str, Any]  # its word, and its parameters
    records: int  # as declared
    constant: int | None  # place of the parameter whose column is 1 in all rows
    width: int  # of a row with its constant
    prior_scale: float
    scale: ScaleRelease
    noise: np.ndarray  # standard deviation of each sum
    information_multipliers: np.ndarray  # the same of both matrices, over the bound of a record
    prior: str = "gaussian"  # of PRIORS, or OWN
    categories: tuple[tuple[int, ...], ...] = ()  # places that add up to the constant
    inflation: float = 1.0  # how much further from their mean draws are than the likelihood says
    # noisy outcomes
    answers: ScaleAnswers  # noisy counts
    first_information: np.ndarray  # at the start
    sums: np.ndarray  # through the root
    last_information: np.ndarray  # at the last mode, through the root
    # what follows from the outcomes before it
    root: np.ndarray
    positions: np.ndarray  # coefficients where sums were asked for
    last_position: np.ndarray  # and where the last information was

    @cached_property
    def frame(self) -> Frame:
        given = {name: value for name, value in self.family.items() if name != "word"}
        family, space = (
            families.BY_WORD[self.family["word"]](**given),
            row_space(self.width, self.constant, self.categories),
        )
        found = self.scale.read(self.answers, self.records)
        prior, shape = (
            (self.prior_scale, self.prior == "wide_intercept"),
            (
                self.width,
                self.width * math.prod(family.outputs),
            ),
        )
        mu = scoring.scores_mu(self.noise)
        return frames.frame(family, self.records, shape, self.constant, prior, found, mu, space)

    @property
    def key(self) -> int:
        """Of the draws: public."""
        return draws_key(self.answers)

    @property
    def information_noise(self) -> np.ndarray:
        """Standard deviations of the noise of both matrices, on their diagonals."""
        return query_grid.round_up(self.frame.information_bound * self.information_multipliers)

    def terms(self) -> Terms:
        noise: dict[type[events.Event], Any] = {
            events.ScaleHistograms: np.array([self.scale.noise]),
            events.GaussianSchedule: self.noise,
            events.InformationSums: self.information_multipliers,
        }
        plan = {
            "records": self.records,
            "model": self.frame.family.name,
            "noise_multipliers": self.noise.tolist(),
            "information_multipliers": self.information_multipliers.tolist(),
        }
        plan |= self.describe(self.scale.to_json())
        settings = {"prior_scale": self.prior_scale, "prior": self.prior}
        return Terms(plan, settings, noise)

    def describe(self, scale: Mapping[str, Any]) -> dict[str, Any]:
        """What the plan says of the run once it is over."""
        found = self.scale.read(self.answers, self.records)
        return {"clip": self.frame.clip, "scale": {**scale, "norm": found.norm, "seen": found.seen}}

    def replay(self, put: Put) -> None:
        """Ask all questions again, of whoever answers them."""
        with jax.enable_x64(True):
            scoring.ask_questions(self.frame, scoring.NoisePlan(self.noise, self.information_multipliers), put)

    def reply(self, question: Question) -> Reply:
        """The stored answer, and where it was asked for."""
        if question.kind == "noise":
            return Reply(self.positions[question.number], self.root, self.sums[question.number])
        if question.number == 0:
            return Reply(question.position, question.root, self.first_information)
        return Reply(self.last_position, self.root, self.last_information)

    def to_json(self) -> dict[str, Any]:
        held = {name: getattr(self, name).tolist() for name in ARRAYS}
        return {
            "format": FORMAT,
            **{each.name: getattr(self, each.name) for each in fields(self)},
            **held,
            "scale": asdict(self.scale),
            "answers": self.answers.to_json(),
            "categories": [list(each) for each in self.categories],
        }

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Release:
        if record["format"] != FORMAT:
            raise ValueError(f"its release has format {record['format']}, this version reads {FORMAT}")
        fields = {name: value for name, value in record.items() if name != "format"}
        arrays = {name: np.array(fields[name], np.float64) for name in ARRAYS}
        size, rows = arrays["last_position"].size, len(arrays["root"])
        square, several = (rows, rows), (arrays["noise"].size, size)
        shapes = {"first_information": square, "last_information": square, "positions": several, "sums": several}
        shapes |= {"root": square, "noise": several[:1], "information_multipliers": (2,)}
        if any(arrays[name].shape != shape for name, shape in shapes.items()):
            raise ValueError("the arrays of its release do not fit together")
        if not all(np.all(np.isfinite(array)) for array in arrays.values()):
            raise ValueError("its release holds numbers that are not finite")
        known: dict[str, Any] = {
            **fields,
            **arrays,
            "scale": ScaleRelease(**fields["scale"]),
            "answers": ScaleAnswers.from_json(fields["answers"]),
            "categories": tuple(tuple(each) for each in fields["categories"]),
        }
        made = cls(**known)
        if made.frame.start.size != size:
            raise ValueError("the arrays of its release do not fit its options")
        return made

    def draw(self, draws: int, log_prior: Callable[[jax.Array], jax.Array] | None = None) -> np.ndarray:
        """So many draws of the coefficients, and the same ones every time; (draws, parameters), in double precision.

        Another prior may be given. It has to be where the run had one of its own, which is a function, and not stored.
        """
        with jax.enable_x64(True):
            found = self._draw(draws, log_prior or find_prior(self.prior, self.prior_scale, self.frame.outputs))
        return spread_out(found, self.inflation)

    def make(self, draws: int, log_prior: Callable[[jax.Array], jax.Array] | None = None) -> Drawn:
        """The same as they are stored."""
        return Drawn(self.draw(draws, log_prior).astype(np.float32)[None])

    def row_moments(self) -> Moments:
        """Mean and covariance of rows with their constant, as far as informations tell."""
        with jax.enable_x64(True):
            rows = self._conclude().rows
        mean, covariance = np.asarray(rows.mean), np.asarray(rows.covariance)
        if (space := self.frame.space) is None:
            return Moments(mean, covariance)
        return Moments(space.outward @ mean, space.outward @ covariance @ space.outward.T)

    def _conclude(self) -> Concluded:
        here, noise = self.frame, self.information_noise
        found = designs.geometry(here, self.first_information, noise[0], self.root)
        wide = frames.expand(found.root, self.last_position.size)
        answers = Answers(np.linalg.solve(wide, self.positions.T).T, self.sums, self.noise**2)
        middle = np.linalg.solve(wide, self.last_position)
        rows, doubts = designs.correct(here, found, (self.last_information, noise[1]), middle)
        return Concluded(found.root, rows, *scoring.locate(here, found.root, rows, answers, middle, doubts))

    def _draw(self, draws: int, log_prior: Callable[[jax.Array], jax.Array]) -> np.ndarray:
        here = self.frame
        root, rows, told, middle, spread = self._conclude()
        wide = frames.expand(root, self.last_position.size)
        if here.space is not None:
            wide = here.space.complete(root, here.outputs).T
            middle, spread = noise_aware.widen(told, wide, self.scales(), middle, spread)
        spread = np.linalg.cholesky(spread)
        first, second = jax.random.split(jax.random.key(self.key))
        chains = min(noise_aware.CHAINS, draws)
        sample = partial(noise_aware.sample, here.family, log_prior, (told, rows), wide)
        if not isinstance(log_prior, NormalPrior):  # whose middle and spread are known by sampling it alone
            tried, _ = sample((middle, spread), first, chains=chains, draws=TRIED)
            middle, spread = hamiltonian.measure(np.asarray(tried)[TRIED // 2 :].reshape(-1, len(wide)))
        drawn, _ = sample((middle, spread), second, chains=chains, draws=-(-draws // chains))
        return (np.asarray(drawn).reshape(-1, len(wide)) @ wide)[:draws]

    def scales(self) -> np.ndarray:
        """Of the prior, for all coefficients."""
        outputs = self.frame.outputs
        found = np.full(self.width * outputs, self.prior_scale)
        if self.prior == "wide_intercept":
            found[:outputs] *= WIDE
        return found
