"""`audit`: run a fit with canaries planted in it, and judge its claim by what it tells of them; or judge the program of
a finished one by what it does on made-up tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from confide import validation
from confide.audits.scores import Scores
from confide.audits.verdicts import Audit, judge
from confide.audits.wording import CONFIDENCE
from confide.inference import canary_requests
from confide.inference.posterior import Posterior
from confide.validation import Refused


def audit(
    fit_call: Callable[[], Any] | Posterior,
    canaries: int = 1000,
    *,
    confidence: float = CONFIDENCE,
    made_up: bool = False,
    repetitions: int | None = None,
    seconds: float | None = None,
    seed: int | None = None,
    earlier: int | None = None,
) -> Audit:
    """Try to refute the guarantee of a run, by canaries planted in it, each with probability 1/2.

    The run is a real one: it is charged to its ledger, and its claim and its posterior are those of a run without
    canaries. Every step's noisy sum is looked at, as whoever gets all iterates can, and scored by the likelihood ratio,
    which no attack surpasses. What is found is computed from what the guarantee covers, so it may be published.

    Args:
        fit_call: runs `confide.fit` once, or an estimator that does; or a posterior that was fitted with `canaries`.
        canaries: how many are planted; more prove more.
        confidence: of the verdict and of the lower bound: that a run which keeps its promise is not called a violation,
            and that the bound is not above the truth.
        made_up: audit the program of a posterior instead: it is built again and run on made-up tables, with one record
            and without it (`confide.audits.made_up`). No record is read, and nothing is spent.
        repetitions: of made-up runs on each table; planned from the sizes by default.
        seconds: no further made-up runs are begun after so many.
        seed: what made-up runs are drawn from; by default the operating system's.
        earlier: audits on made-up tables that were made of this run before, none by default: the level is shared with
            them, so that all hold together however often it is audited.

    >>> import numpy as np
    >>> from confide import Budget, audit, fit, models, sgld
    >>> X, y = np.eye(4, dtype="float32")[np.arange(400) % 4], np.arange(400) % 2
    >>> model, budget = models.logistic_regression(4), Budget(epsilon=4, delta=1e-5)
    >>> found = audit(lambda: fit(model, (X, y), budget, sgld(), 100, key=1, verbose=False), canaries=100)
    >>> found.verdict
    'not refuted'
    """
    confidence = validation.probability(confidence=confidence)
    if made_up:
        return _audit_program(fit_call, confidence, repetitions, seconds, seed, earlier or 0)
    for name, given in {"repetitions": repetitions, "seconds": seconds, "seed": seed, "earlier": earlier}.items():
        if given is not None:
            raise Refused(f"{name} goes with made_up=True: give that, or leave it out")
    if isinstance(fit_call, Posterior):
        posterior = fit_call
    elif callable(fit_call):
        with canary_requests.request(canaries) as fitted:
            posterior = fit_call()
        if not isinstance(posterior, Posterior):  # an estimator, or whatever else it made of it
            posterior = fitted[-1] if fitted else None
    else:
        raise Refused("fit_call is no function: give one without arguments, such as lambda: confide.fit(...)")
    if posterior is None or posterior.guarantee is None:
        raise Refused("fit_call fitted nothing private: let it call confide.fit once, in the same thread")
    if posterior.canaries is None:
        raise Refused(
            "the posterior has no canaries: call confide.fit inside fit_call, or fit it with canaries=1000 beforehand"
        )
    return judge(posterior.guarantee, scores(posterior), confidence=confidence, canaries=posterior.canaries)


def _audit_program(
    posterior: Any,
    confidence: float,
    repetitions: int | None,
    seconds: float | None,
    seed: int | None,
    earlier: int,
) -> Audit:
    from confide.audits.made_up import audit_program

    if not isinstance(posterior, Posterior):
        raise Refused("made_up=True audits a finished run: give its posterior")
    return audit_program(
        posterior, confidence=confidence, repetitions=repetitions, seconds=seconds, seed=seed, earlier=earlier
    )


def scores(posterior: Posterior) -> Scores:
    """The scores of the canaries of a run."""
    found = posterior.canaries
    assert found is not None
    inside, outside = found.scores[found.inside], found.scores[~found.inside]
    return Scores(members=inside, nonmembers=outside, name="canaries", confidential=False)
