"""What private scoring released: all that its draws are made from, and anybody can make them again from it alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from confide.inference import noise_aware, scoring
from confide.inference.scoring import Answers, Frame
from confide.models import families

FORMAT = 1
TRIED = 60  # moves before the middle of a prior of one's own is known
ARRAYS = ("start", "first_information", "positions", "sums", "noise", "last_information")


@dataclass(frozen=True)
class NormalPrior:
    """Independent and normal about 0: equal ones are one program."""

    scale: float

    def __call__(self, theta: jax.Array) -> jax.Array:
        return -0.5 * jnp.sum(jnp.square(theta / self.scale))


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
        )

    def to_json(self) -> dict[str, Any]:
        held = {name: getattr(self, name).tolist() for name in ARRAYS}
        return {"format": FORMAT, **asdict(self), **held, "information_noise": list(self.information_noise)}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Release:
        if record["format"] != FORMAT:
            raise ValueError(f"its release has format {record['format']}, this version reads {FORMAT}")
        fields = {name: value for name, value in record.items() if name != "format"}
        arrays = {name: np.array(fields[name], np.float64) for name in ARRAYS}
        size = arrays["start"].size
        square, several = (size, size), (arrays["noise"].size, size)
        shapes = {"first_information": square, "last_information": square, "positions": several, "sums": several}
        if any(arrays[name].shape != shape for name, shape in shapes.items()):
            raise ValueError("the arrays of its release do not fit together")
        known: dict[str, Any] = {**fields, **arrays, "information_noise": tuple(fields["information_noise"])}
        return cls(**known)

    def draw(self, draws: int, log_prior: Callable[[jax.Array], jax.Array] | None = None) -> np.ndarray:
        """So many draws of the coefficients, and the same ones every time; (draws, parameters), in double precision."""
        with jax.enable_x64(True):
            return self._draw(draws, NormalPrior(self.prior_scale) if log_prior is None else log_prior)

    def _draw(self, draws: int, log_prior: Callable[[jax.Array], jax.Array]) -> np.ndarray:
        here = self.frame
        found = scoring.geometry(here, self.first_information, self.information_noise[0])
        inside = np.linalg.solve(found.root, self.positions.T).T
        answers = Answers(inside, self.sums, self.noise**2)
        rows = scoring.rows_of(here, found.shrunk.second)
        middle = scoring.locate(here, found.root, rows, answers, inside[-1])
        bends, moves = jax.random.split(jax.random.key(self.key))
        end = (self.last_information, self.information_noise[1])
        chains = min(noise_aware.CHAINS, draws)
        corrected = scoring.correct(here, found, end, middle, bends, chains)
        middle = scoring.locate(here, found.root, corrected.mean, answers, middle)
        told = scoring.gather(here, found.root, corrected.mean, answers, middle)
        middle, precision = noise_aware.find_mode(here.family, told, corrected.mean, middle, scoring.ITERATIONS)
        spread = np.linalg.inv(np.linalg.cholesky(np.asarray(precision))).T
        if not isinstance(log_prior, NormalPrior):  # whose middle and spread are known by sampling it alone
            tried, _ = noise_aware.sample(here.family, log_prior, told, corrected.drawn, (middle, spread), bends, TRIED)
            middle, spread = _spread(np.asarray(tried)[TRIED // 2 :].reshape(-1, len(self.start)))
        drawn, _ = noise_aware.sample(
            here.family, log_prior, told, corrected.drawn, (middle, spread), moves, -(-draws // chains)
        )
        return (np.asarray(drawn).reshape(-1, len(self.start)) @ found.root)[:draws]


def _spread(tried: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean of draws, and a root of their covariance, drawn towards its diagonal as far as they are few."""
    covariance = np.cov(tried.T).reshape(tried.shape[1], -1)
    share = min(1.0, 5 * tried.shape[1] / len(tried))
    mixed = (1 - share) * covariance + share * np.diag(np.diag(covariance))
    return tried.mean(axis=0), np.linalg.cholesky(mixed + 1e-9 * np.diag(np.diag(mixed)) + 1e-300 * np.eye(len(mixed)))
