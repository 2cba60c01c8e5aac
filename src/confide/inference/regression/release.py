"""What a private regression released: options and noisy answers, and nothing else.

Everything that follows from the answers (where columns are, how rows are whitened, at which coefficients scores were
summed, how they were cut) is computed again by the program of the run (`program.run`), from the answers in the order in
which they were drawn. So no file holds a number that could differ from what follows, and anybody can make the draws
again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from confide.data.features import Feature, read_features
from confide.inference.regression import draws, program
from confide.inference.regression.declared import make_design
from confide.inference.regression.design import Design, divide
from confide.inference.regression.priors import prior_from_json
from confide.inference.regression.program import Result
from confide.inference.release_terms import Drawn, Terms, spread_out
from confide.mechanism.sum_queries import SumQuery, count_entries
from confide.models import families
from confide.privacy import events
from confide.validation import Refused

KIND = "regression"
FORMAT = 1


@dataclass(frozen=True, kw_only=True, eq=False)
class RegressionRelease:
    """Options, and noisy answers by the name of their query."""

    family: str  # as the command line calls it
    records: int  # as declared
    features: tuple[Feature, ...]  # without the intercept
    outcome: tuple[float, float]  # bounds
    constant: int  # place of the intercept among the parameters
    prior: Mapping[str, Any]
    noise_multipliers: np.ndarray  # of vectors, over the bound of a record
    information_multipliers: np.ndarray  # of matrices
    answers: Mapping[str, np.ndarray]  # vectors, and upper triangles of matrices
    inflation: float = 1.0  # how much further from their mean draws are than the posterior says

    @cached_property
    def design(self) -> Design:
        return make_design(self.family, self.features, self.outcome, self.records)

    @cached_property
    def result(self) -> Result:
        """What follows from the answers."""
        multipliers = name_multipliers(self.design, self.noise_multipliers, self.information_multipliers)
        names: list[str] = []

        def ask(name: str, query: SumQuery) -> np.ndarray:
            names.append(name)
            answer = self.answers.get(name)
            if answer is None or answer.shape != (query.coordinates,):
                raise Refused(f"release.json has no answer to {name!r} of {query.coordinates} numbers")
            return unpack_answer(query, answer)

        try:
            result = program.run(self.design, multipliers, prior_from_json(self.prior), ask)
        except (np.linalg.LinAlgError, FloatingPointError, ZeroDivisionError) as error:
            raise Refused(f"nothing follows from the answers in release.json: {error}") from None
        if set(names) != set(self.answers):
            raise Refused("release.json has answers to queries that the run does not make")
        return result

    @property
    def key(self) -> int:
        """The seed of the draws: a function of the first noisy answer."""
        first = np.ascontiguousarray(self.answers["count"], "<f8").tobytes()
        return int.from_bytes(hashlib.sha256(first).digest()[:4], "little")

    def terms(self) -> Terms:
        noise: dict[type[events.Event], Any] = {
            events.GaussianSchedule: self.noise_multipliers,
            events.InformationSums: self.information_multipliers,
        }
        plan = {
            "records": self.records,
            "model": families.BY_WORD[self.family].name,
            "noise_multipliers": self.noise_multipliers.tolist(),
            "information_multipliers": self.information_multipliers.tolist(),
            **self.describe(),
        }
        encoded = self.prior["kind"] == "encoded"
        return Terms(plan, {"prior_scale": self.prior["scale"]} if encoded else {}, noise)

    def describe(self, scale: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What the plan says of the run once it is over."""
        return {"counted": {"number": self.result.number, "error": self.result.number_error}}

    def make(self, count: int, log_prior: Any = None) -> Drawn:
        """The draws as they are stored, and the same ones every time."""
        coefficients, scales = self._draw(count)
        parameters = coefficients.astype(np.float32)[None]
        return Drawn(parameters, None if scales is None else scales.astype(np.float32)[None])

    def draw(self, count: int, log_prior: Any = None) -> np.ndarray:
        """So many draws of the coefficients, in the order of the model's parameters."""
        return self._draw(count)[0]

    def _draw(self, count: int) -> tuple[np.ndarray, np.ndarray | None]:
        generator = np.random.default_rng(self.key)
        positions = draws.draw(self.result, count, generator)
        scales = draws.draw_scale(self.result, count, generator)
        coefficients = spread_out(draws.to_coefficients(self.result, positions), self.inflation)
        return place_intercept(coefficients, self.constant), scales

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": KIND,
            "format": FORMAT,
            "family": self.family,
            "records": self.records,
            "features": [feature._asdict() for feature in self.features],
            "outcome": list(self.outcome),
            "constant": self.constant,
            "prior": dict(self.prior),
            "noise_multipliers": self.noise_multipliers.tolist(),
            "information_multipliers": self.information_multipliers.tolist(),
            "inflation": self.inflation,
            "answers": {name: answer.tolist() for name, answer in self.answers.items()},
        }

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> RegressionRelease:
        if record["format"] != FORMAT:
            raise ValueError(f"its release has format {record['format']}, this version reads {FORMAT}")
        answers = {name: np.array(answer, np.float64) for name, answer in record["answers"].items()}
        arrays = {name: np.array(record[name], np.float64) for name in ("noise_multipliers", "information_multipliers")}
        if not all(np.all(np.isfinite(array)) for array in (*answers.values(), *arrays.values())):
            raise ValueError("its release holds numbers that are not finite")
        low, high = record["outcome"]
        return cls(
            family=record["family"],
            records=record["records"],
            features=read_features(record["features"]),
            outcome=(low, high),
            constant=record["constant"],
            prior=record["prior"],
            answers=answers,
            inflation=record["inflation"],
            **arrays,
        )


def name_multipliers(design: Design, vectors: np.ndarray, matrices: np.ndarray) -> dict[str, float]:
    """Noise multipliers by the name of the query, from those of vectors and of matrices in their orders."""
    shares = divide(design)
    if (len(vectors), len(matrices)) != (sum(not s.is_matrix for s in shares), sum(s.is_matrix for s in shares)):
        raise Refused("release.json has another number of noise multipliers than the run has queries")
    of_vectors, of_matrices = iter(vectors.tolist()), iter(matrices.tolist())
    return {share.name: next(of_matrices if share.is_matrix else of_vectors) for share in shares}


def pack_answer(query: SumQuery, answer: np.ndarray) -> np.ndarray:
    """An answer as it is stored: of a matrix the upper triangle."""
    return answer[np.triu_indices(query.size)] if query.is_matrix else answer


def unpack_answer(query: SumQuery, stored: np.ndarray) -> np.ndarray:
    if not query.is_matrix:
        return stored
    assert stored.size == count_entries(query.size)
    matrix = np.zeros((query.size, query.size))
    rows, columns = np.triu_indices(query.size)
    matrix[rows, columns] = matrix[columns, rows] = stored
    return matrix


def place_intercept(coefficients: np.ndarray, place: int) -> np.ndarray:
    """Coefficients whose last column is the intercept, with the intercept in its place among the parameters."""
    others, intercept = coefficients[:, :-1], coefficients[:, -1:]
    return np.concatenate([others[:, :place], intercept, others[:, place:]], axis=1)
