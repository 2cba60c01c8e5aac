"""What private scoring released: all that its draws are made from, and anybody can make them again from it alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from confide.inference import designs, frames, hamiltonian, noise_aware, scoring
from confide.inference.expected_scores import Rows
from confide.inference.frames import Frame
from confide.inference.moments import Moments
from confide.inference.noise_aware import Told
from confide.inference.release_terms import Drawn, Terms, draws_key, spread_out
from confide.inference.row_spaces import row_space
from confide.inference.scoring import Answers
from confide.models import families
from confide.models.priors import WIDE
from confide.privacy import events
from confide.validation import Refused

FORMAT = 3  # 1, 2: draws were made otherwise
TRIED = 60  # moves before the middle of a prior of one's own is known
ARRAYS = ("start", "first_information", "positions", "sums", "noise", "last_information")


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
    """Numbers in units of the clip: rows through the root are in such units, and so are sums and their noise."""

    family: dict[str, Any]  # its word, and its parameters
    records: int  # as declared
    constant: int | None  # place of the parameter whose column is 1 in all rows
    prior_scale: float
    norm: float
    clip: float
    typical: float
    seen: bool  # whether the scale stands out of its noise
    start: np.ndarray
    first_information: np.ndarray  # at the start
    last_information: np.ndarray  # at the last mode, through the root
    information_noise: tuple[float, float]  # standard deviations on their diagonals
    positions: np.ndarray  # coefficients where sums were asked for
    sums: np.ndarray  # through the root
    noise: np.ndarray  # standard deviation of each
    key: int  # of the draws: public
    prior: str = "gaussian"  # of PRIORS, or OWN
    made_by: int = FORMAT  # the format whose draws these are
    categories: tuple[tuple[int, ...], ...] = ()  # places that add up to the constant: then all is in coordinates of
    width: int | None = None  # `row_spaces.row_space`, of rows of this length
    place: int | None = None  # of the constant among them
    inflation: float = 1.0  # how much further from their mean draws are than the likelihood says

    @property
    def frame(self) -> Frame:
        given = {name: value for name, value in self.family.items() if name != "word"}
        family = families.BY_WORD[self.family["word"]](**given)
        return Frame(
            family,
            self.records,
            self.constant,
            self.prior_scale,
            self.norm,
            self.clip,
            self.typical,
            self.seen,
            self.start,
            self.prior == "wide_intercept",
            row_space(self.width, self.place, self.categories) if self.width is not None else None,
        )

    def terms(self) -> Terms:
        here = self.frame
        noise: dict[type[events.Event], Any] = {
            events.GaussianSchedule: self.noise,
            events.InformationSums: np.array(self.information_noise) / here.information_bound,
        }
        plan = {"records": self.records, "model": here.family.name}
        settings = {"prior_scale": self.prior_scale, "prior": self.prior}
        return Terms(plan, settings, noise, draws_key(self.sums), self.made_by == FORMAT)

    def to_json(self) -> dict[str, Any]:
        held = {name: getattr(self, name).tolist() for name in ARRAYS}
        return {
            "format": self.made_by,
            **{name: value for name, value in asdict(self).items() if name != "made_by"},
            **held,
            "information_noise": list(self.information_noise),
            "categories": [list(each) for each in self.categories],
        }

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Release:
        if record["format"] not in (1, 2, FORMAT):
            raise ValueError(f"its release has format {record['format']}, this version reads {FORMAT}")
        fields = {name: value for name, value in record.items() if name != "format"}
        arrays = {name: np.array(fields[name], np.float64) for name in ARRAYS}
        size = arrays["start"].size
        rows = size // int(fields["family"].get("classes", 1))
        square, several = (rows, rows), (arrays["noise"].size, size)
        shapes = {"first_information": square, "last_information": square, "positions": several, "sums": several}
        if any(arrays[name].shape != shape for name, shape in shapes.items()):
            raise ValueError("the arrays of its release do not fit together")
        if not all(np.all(np.isfinite(array)) for array in arrays.values()):
            raise ValueError("its release holds numbers that are not finite")
        known: dict[str, Any] = {
            **fields,
            **arrays,
            "made_by": record["format"],
            "information_noise": tuple(fields["information_noise"]),
            "categories": tuple(tuple(each) for each in fields.get("categories", ())),
        }
        return cls(**known)

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
        here = self.frame
        found = designs.geometry(here, self.first_information, self.information_noise[0])
        wide = frames.expand(found.root, self.start.size)
        inside = np.linalg.solve(wide, self.positions.T).T
        answers = Answers(inside, self.sums, self.noise**2)
        doubts = [designs.first_doubt(here, found, inside[-1])]
        _, middle, _ = scoring.locate(here, found.root, found.rows, answers, inside[-1], doubts)
        end = (self.last_information, self.information_noise[1])
        rows, doubts = designs.correct(here, found, end, middle)
        return Concluded(found.root, rows, *scoring.locate(here, found.root, rows, answers, middle, doubts))

    def _draw(self, draws: int, log_prior: Callable[[jax.Array], jax.Array]) -> np.ndarray:
        here = self.frame
        root, rows, told, middle, spread = self._conclude()
        wide = frames.expand(root, self.start.size)
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
        found = np.full((self.width or len(self.start) // outputs) * outputs, self.prior_scale)
        if self.prior == "wide_intercept":
            found[:outputs] *= WIDE
        return found
