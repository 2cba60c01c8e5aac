"""What scoring of a linear model released: all that its draws are made from, and anybody can make them again from it
alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from confide.inference import hamiltonian
from confide.inference.linear import likelihood, questions
from confide.inference.linear.likelihood import Rows, Told
from confide.inference.linear.questions import Answers, Frame
from confide.inference.moments import Moments
from confide.inference.release import find_prior
from confide.inference.release_terms import Drawn, Terms, draws_key, spread_out
from confide.mechanism.linear_sums import Cuts
from confide.models.families import Gaussian
from confide.privacy import events

KIND = "learnt noise"
FORMAT = 3  # 1, 2: draws were made otherwise
CHAINS = 40
TRIED = 50  # moves before the middle of what is sampled is known
ARRAYS = ("first_information", "positions", "scales", "sums", "noise", "last_information")


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearRelease:
    """Sums are of scores through the root, and of the scale's; their noise is in the same units."""

    records: int  # as declared
    constant: int | None  # place of the parameter whose column is 1 in all rows
    prior_scale: float
    norm: float
    outcome: float
    seen: bool  # whether the scale stands out of its noise
    cuts: tuple[float, float]
    first_information: np.ndarray  # of rows over their norm
    last_information: np.ndarray  # through the root
    information_noise: tuple[float, float]  # standard deviations on their diagonals
    positions: np.ndarray  # coefficients where sums were asked for
    scales: np.ndarray  # and noise scales
    sums: np.ndarray  # (sums, parameters + 1)
    noise: np.ndarray  # standard deviation of each
    key: int  # of the draws: public
    prior: str = "gaussian"  # of `release.PRIORS`, or OWN
    made_by: int = FORMAT  # the format whose draws these are
    inflation: float = 1.0  # how much further from their mean draws of coefficients are than the likelihood says

    @property
    def frame(self) -> Frame:
        cuts = Cuts(*self.cuts)
        return Frame(self.records, self.constant, self.prior_scale, self.norm, self.outcome, self.seen, cuts)

    def terms(self) -> Terms:
        cuts = Cuts(*self.cuts)
        noise: dict[type[events.Event], Any] = {
            events.GaussianSchedule: self.noise / cuts.bound,
            events.InformationSums: np.array(self.information_noise) / cuts.information_bound,
        }
        plan = {"records": self.records, "model": Gaussian.name, "cuts": list(self.cuts)}
        settings = {"prior_scale": self.prior_scale, "prior": self.prior, "noise_scale": None}
        return Terms(plan, settings, noise, draws_key(self.sums), self.made_by == FORMAT)

    def to_json(self) -> dict[str, Any]:
        held = {name: getattr(self, name).tolist() for name in ARRAYS}
        own = {"cuts": list(self.cuts), "information_noise": list(self.information_noise)}
        fields = {name: value for name, value in asdict(self).items() if name != "made_by"}
        return {"kind": KIND, "format": self.made_by, **fields, **held, **own}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> LinearRelease:
        if record["format"] not in (1, 2, FORMAT):
            raise ValueError(f"its release has format {record['format']}, this version reads {FORMAT}")
        fields = {name: value for name, value in record.items() if name not in ("kind", "format")}
        arrays = {name: np.array(fields[name], np.float64) for name in ARRAYS}
        steps, size = arrays["positions"].shape
        shapes = {
            "first_information": (size, size),
            "last_information": (size, size),
            "scales": (steps,),
            "noise": (steps,),
            "sums": (steps, size + 1),
        }
        if any(arrays[name].shape != shape for name, shape in shapes.items()):
            raise ValueError("the arrays of its release do not fit together")
        if not all(np.all(np.isfinite(array)) for array in arrays.values()):
            raise ValueError("its release holds numbers that are not finite")
        pairs = {name: tuple(fields[name]) for name in ("cuts", "information_noise")}
        known: dict[str, Any] = {**fields, **arrays, **pairs, "made_by": record["format"]}
        return cls(**known)

    def draw(self, draws: int, log_prior: Callable[[jax.Array], jax.Array] | None = None) -> np.ndarray:
        """So many draws of the coefficients and, last, the noise scale, and the same ones every time; in double."""
        with jax.enable_x64(True):
            found = self._draw(draws, log_prior or find_prior(self.prior, self.prior_scale))
        return np.column_stack([spread_out(found[:, :-1], self.inflation), found[:, -1]])

    def row_moments(self) -> Moments:
        """Mean and covariance of rows with their constant, as far as informations tell."""
        here = self.frame
        found = questions.geometry(here, self.first_information, self.information_noise[0])
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
        found = questions.geometry(here, self.first_information, self.information_noise[0])
        inside = np.linalg.solve(found.root, self.positions.T).T
        answers = Answers(np.column_stack([inside, np.log(self.scales)]), self.sums, self.noise**2)
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
