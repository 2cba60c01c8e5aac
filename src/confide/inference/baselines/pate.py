"""PATE: models that see disjoint records label public rows by a noisy vote, and a student learns from the labels.

Private aggregation of teacher ensembles with Confident-GNMax (Papernot et al. 2018). It asks nothing of the model: no
convexity, no clip, no bound on the rows; any classifier will do. What it needs instead is public rows without labels
from the same population, and many records: each teacher has few.

    1. every record goes to one of `teachers` models, at random, and each learns from its own, without any privacy
    2. the teachers vote on public rows, in random order; n_j are the votes of a row for label j
    3. with a threshold, rows where max_j n_j + N(0, t^2) is below it are passed over
    4. the label of a row is argmax_j n_j + N(0, s^2), until `answers` rows have one
    5. a student learns from these rows and labels: post-processing, which costs nothing

`confide.privacy.accountants.pate` has the price, mu^2 = queries / t^2 + 2 answers / s^2, under either relation, and
`ensemble` why one record reaches one teacher. The price is that of the largest numbers of queries and answers, known
and charged beforehand; rows that are not used up give nothing back. `aggregation` says how all numbers are chosen.
"""

from __future__ import annotations

import math
import os
import sys
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from confide import validation
from confide.inference import plans
from confide.inference.baselines import aggregation, ensemble, release
from confide.inference.baselines.ensemble import Lessons, Parts
from confide.inference.posterior import Posterior
from confide.inference.spend import Paid
from confide.inference.summaries.releases import VotesSummary
from confide.mechanism import noise as noises
from confide.models.inputs import Records, check_data
from confide.models.model import Model
from confide.privacy.accountants.gdp import mu_of_epsilon
from confide.privacy.budget import Budget
from confide.privacy.events import NoisyVotes
from confide.privacy.ledger import Ledger
from confide.validation import Refused

Account = Literal["data-independent", "data-dependent"]
ACCOUNTS: tuple[Account, ...] = ("data-independent", "data-dependent")
BATCH = 64


def pate(
    model: Model,
    data: Any,
    budget: Budget,
    public: Any,
    *,
    student: Model | None = None,
    teachers: int | None = None,
    answers: int | None = None,
    queries: int | None = None,
    threshold: float | None = None,
    account: Account = "data-independent",
    steps: int = Lessons.steps,
    batch_size: int | None = None,
    learning_rate: float = Lessons.learning_rate,
    records: int | None = None,
    key: Any = None,
    secure: bool = False,
    ledger: Ledger | str | os.PathLike[str] | None = None,
    dataset: str | None = None,
    verbose: bool = True,
) -> Posterior:
    """One draw: a student that learnt from public rows, labelled by a noisy vote. Add-remove and replace-one.

    `plan["labelled"]` has which rows of `public` were answered, and their labels: as public as the draw.

    Args:
        model: any classifier of `confide.models`, or your own with a predict function: the teachers'. They learn
            without dropout.
        data: (X, y).
        budget: delta above 0.
        public: rows like those of X, without labels, which anyone may know.
        student: another classifier of the same labels; the teachers' by default.
        teachers: how many; each gets about records / teachers of the records.
        answers: labels at most.
        queries: public rows that are looked at, at most; without a threshold as many as answers.
        threshold: share of the teachers that must agree, such as 0.7, with noise; None answers every row.
        account: "data-dependent" pays for one figure more, `plan["figure"]`: what the labels revealed at these very
            records. The promise stays that of the budget.
        steps: of Adam, with `batch_size` (64, or all there is) and `learning_rate`, for teachers and student alike.
        records: how many there are, as declared: by default the number of rows. What is planned and shown follows it.
        key: a number that all is derived from, with the records and all settings; by default the operating system's.
            One that anyone knows or guesses voids the guarantee.
        secure: the bits of the noise from a key of 256 bits of the operating system's, not of 64; takes no key.
        ledger: charged before the records are used; `dataset` names the entry where the ledger has several.
    """
    validation.one_of(ACCOUNTS, account=account)
    validation.instance(Model, model=model)
    student = model if student is None else student
    validation.instance(Model, student=student)
    steps, learning_rate = validation.count(steps=steps), validation.positive(learning_rate=learning_rate)
    batch_size = None if batch_size is None else validation.count(batch_size=batch_size)
    request = release.check(model, data, budget, key, ledger, dataset, records=records, secure=secure)
    _check_classifiers(model=model, student=student)
    rows = _public(model, student, request.table, public)
    labels = _labels(model, student, request.data, rows)
    delta = release.needs_delta(budget, "take objective_perturbation with method='chaudhuri2011'")
    threshold = None if threshold is None else validation.probability(one=True, threshold=threshold)
    mu = mu_of_epsilon(budget.epsilon, delta) * (1 - 1e-9)
    count = _teachers(request.records, aggregation.enough(request.records, mu, threshold is not None), teachers)
    event = aggregation.plan_votes(
        mu, count, len(rows), answers, queries, threshold, labels=labels, figure=account == "data-dependent"
    )
    lessons, homework = (
        Lessons(steps=steps, batch_size=batch_size or min(BATCH, most), learning_rate=learning_rate)
        for most in (math.ceil(request.records / count), event.answers)
    )
    summary = release.describe(
        VotesSummary,
        request,
        teachers=count,
        **event.fields() | {"queries": event.queries or None},
        threshold=threshold,
        account=account,
        public_rows=len(rows),
        steps=lessons.steps,
        batch_size=lessons.batch_size,
        learning_rate=lessons.learning_rate,
        student=[student.name, student.settings],
    )
    released = event.released()
    paid = release.pay(request, event, summary, released=released, assumptions=(), public=(rows,), verbose=verbose)
    votes = _votes(model, request, paid, event, lessons, rows)
    chosen, labelled, summary = _label(votes, event, paid)
    blank = np.zeros(len(rows), np.float32 if student.linear is not None else request.data[1].dtype)
    if verbose:
        print("\n".join(f"  {line}" for line in summary.outcome()), file=sys.stderr)
    draws = _student(student, (rows, blank), chosen, labelled, event.answers, homework, paid.key("student"))
    return Posterior(draws=draws, guarantee=paid.guarantee, plan=summary.to_json(), model=student)


def _check_classifiers(**models: Model) -> None:
    for name, each in models.items():
        if each.kind != "classification" or each.predict is None:
            raise Refused(f"{name} = {each.name} does not predict labels, and a vote needs labels: take a classifier")


def _public(model: Model, student: Model, table: Records, public: Any) -> np.ndarray:
    """The public rows, as the models take them."""
    data = table.arrays
    if len(data) != 2:
        raise Refused(f"data holds {len(data)} arrays: give (X, y)")
    shape = np.shape(public)
    if len(shape) != data[0].ndim or shape[1:] != data[0].shape[1:] or not shape[0]:
        raise Refused(f"public has shape {shape}: give rows like those of X, each of shape {data[0].shape[1:]}")
    blank = np.zeros(shape[0], data[1].dtype)
    rows = check_data(replace(model, labels=None), (public, blank))[0]
    check_data(replace(student, labels=None), (public, blank))
    for each in (model, student):
        plans.check_likelihood(each, table, *plans.unraveller(each, data, noises.as_key(0)))
    return rows


def _labels(model: Model, student: Model, data: tuple[np.ndarray, ...], rows: np.ndarray) -> int:
    """How many labels both tell apart."""
    labels = _label_count(model, data, rows)
    if _label_count(student, data, rows) != labels:
        raise Refused(f"student tells other labels apart than the {labels} of the model: give one with as many")
    return labels


def _label_count(model: Model, data: tuple[np.ndarray, ...], rows: np.ndarray) -> int:
    """How many labels a classifier has, from shapes alone."""
    example = (np.zeros((1, *rows.shape[1:]), rows.dtype), np.zeros(1, data[1].dtype))

    def predicted() -> Any:
        assert model.predict is not None
        return model.predict(model.constrain(model.start(noises.as_key(0), example)), jnp.asarray(example[0]))

    try:
        shape = jax.eval_shape(predicted).shape
    except Exception as error:  # the user's own function
        raise Refused(f"{model.name} cannot predict one row: {(str(error).splitlines() or [''])[0][:200]}") from None
    if len(shape) != 2 or shape[-1] < 2:
        raise Refused(f"{model.name} predicts an array of shape {shape} for one row: at least two labels are needed")
    return shape[-1]


def _teachers(records: int, enough: int, given: int | None) -> int:
    given = enough if given is None else validation.count(teachers=given)
    if given > records:
        raise Refused(f"teachers = {given} is more than the {records} records: give far fewer, such as one in 100")
    return given


class Votes(NamedTuple):
    """What the teachers say of public rows, in the order in which those are looked at. Private."""

    order: np.ndarray  # of the public rows
    counts: np.ndarray  # (rows, labels)


def _votes(
    model: Model,
    request: release.Request,
    paid: Paid[VotesSummary],
    event: NoisyVotes,
    lessons: Lessons,
    rows: np.ndarray,
) -> Votes:
    """Train the teachers and count their votes."""
    count = paid.summary.teachers
    order = np.asarray(jax.random.permutation(paid.key("order"), len(rows)))[: event.queries or event.answers]
    assignment = ensemble.assign(request.places, count, paid.key("teachers"))
    parts = ensemble.partition(assignment, request.table.present, count)
    learnt = ensemble.teach(model, request.data, parts, lessons, paid.key("lessons"))
    return Votes(order, ensemble.counts(model, learnt, rows[order]))


def _label(votes: Votes, event: NoisyVotes, paid: Paid[VotesSummary]) -> tuple[np.ndarray, np.ndarray, VotesSummary]:
    """Which public rows are answered, with which labels; and the summary, which tells both."""
    threshold = paid.summary.threshold
    answered, labels, noise_key = aggregation.answer(votes.counts, event, threshold, paid.source)
    chosen = votes.order[answered]
    summary = replace(paid.summary, labelled={"rows": chosen.tolist(), "labels": labels.tolist()})
    if event.figure_noise is not None:
        figure = aggregation.price_votes(votes.counts, event, threshold, paid.guarantee, noise_key)
        summary = replace(summary, figure=figure)
    return chosen, labels, summary


def _student(
    model: Model,
    public: tuple[np.ndarray, np.ndarray],
    chosen: np.ndarray,
    labels: np.ndarray,
    most: int,
    lessons: Lessons,
    key: jax.Array,
) -> Any:
    """The student's parameters, with axes for chain and draw. No answers at all leave it at its prior."""
    rows, targets = public
    targets[chosen] = labels
    places = np.zeros((1, most), np.int32)
    places[0, : len(chosen)] = chosen
    parts = Parts(places, np.array([len(chosen)], np.int32))
    learnt = ensemble.teach(model, (rows, targets), parts, lessons, key)
    return jax.tree.map(lambda leaf: np.asarray(leaf)[None], learnt)
