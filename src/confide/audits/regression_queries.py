"""The queries of a private regression, and the answers that the records of a table give to them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from confide.inference.regression import program
from confide.inference.regression.job import RegressionJob
from confide.inference.regression.priors import prior_from_json
from confide.inference.regression.release import RegressionRelease, name_multipliers, pack_answer, unpack_answer
from confide.mechanism.sum_queries import SumQuery
from confide.models.inputs import Records

NO_CANARIES = np.zeros(0)


class NamedQuery(NamedTuple):
    name: str
    query: SumQuery


def answer(job: RegressionJob, named: NamedQuery, records: Records, key: Any) -> np.ndarray:
    """The noisy answer as a run stores it, by the function of the run."""
    noisy = job.answer(named.name, named.query, records, key, NO_CANARIES, np.zeros((4, 0)))
    return pack_answer(named.query, noisy)


def list_queries(job: RegressionJob, release: RegressionRelease, records: Records, key: Any) -> list[NamedQuery]:
    """All queries that the program makes, each at the place where the run made it. The run's own answers decide the
    places; a query that the run did not make is answered by the records."""
    queries: list[NamedQuery] = []

    def ask(name: str, query: SumQuery) -> np.ndarray:
        queries.append(NamedQuery(name, query))
        stored = release.answers.get(name)
        if stored is None or stored.shape != (query.coordinates,):
            return job.answer(name, query, records, key, NO_CANARIES, np.zeros((4, 0)))
        return unpack_answer(query, stored)

    multipliers = name_multipliers(job.design, job.multipliers, job.information_multipliers)
    program.run(job.design, multipliers, prior_from_json(job.prior), ask)
    return queries


def has_answers(job: RegressionJob, records: Records, key: Any, release: RegressionRelease) -> bool:
    """Whether the stored answers are those that the records give to the queries that follow from them."""
    records = job.without_constant(records)
    queries = list_queries(job, release, records, key)
    if {named.name for named in queries} != set(release.answers):
        return False
    return all(np.array_equal(answer(job, named, records, key), release.answers[named.name]) for named in queries)
