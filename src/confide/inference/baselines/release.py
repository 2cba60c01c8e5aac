"""What the baselines share: one release of parameters, priced and charged before the records are used.

Everything is checked here and paid for by `spend`, as in `confide.fit`. After the charge nothing is refused.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import jax
import numpy as np

from confide import validation
from confide.inference.posterior import Posterior
from confide.inference.spend import DOMAIN, GIVEN_KEY, ONE_RECORD, Account, Key, Paid, Purchase, spend
from confide.inference.summaries.releases import ReleaseSummary
from confide.mechanism import noise as noises
from confide.models import convexity
from confide.models.inputs import Records, place_records
from confide.models.model import Model, take_noise_as_given
from confide.models.tracing import model_digest
from confide.privacy import charges
from confide.privacy.budget import Budget
from confide.privacy.events import Event
from confide.privacy.ledger import Ledger
from confide.validation import Refused

Kind = TypeVar("Kind", bound=ReleaseSummary)
SLACK = 1e-3  # share of delta that is left over, as a price at exactly the delta of a release is refused
ROUNDED = (
    "What is released lies on a grid, to which the noise is rounded exactly, and the noise allows for that. Its bits "
    "are those of SHAKE-256 with a key of {} bits, and pass for random."
)
SPHERICAL = "The noise points in a uniform direction, and its length has a Gamma distribution: no Gaussian is involved."


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked, checked."""

    model: Model
    table: Records
    budget: Budget
    account: Account | None
    key: Key

    @property
    def data(self) -> tuple[np.ndarray, ...]:
        """With a row for every place that a record can take."""
        return self.table.arrays

    @property
    def records(self) -> int:
        """As declared."""
        return self.table.number

    @property
    def places(self) -> int:
        """The most records that there can be: what rounding is bounded by."""
        return self.table.places

    @property
    def size(self) -> int:
        """How many parameters there are."""
        if self.model.linear is None:
            example = tuple(np.zeros((1, *array.shape[1:]), array.dtype) for array in self.data)
            started = jax.eval_shape(lambda: self.model.start(noises.as_key(0), example))
            return sum(leaf.size for leaf in jax.tree.leaves(started))
        return (self.data[0].shape[1] + self.model.linear.intercept) * int(np.prod(self.model.linear.outputs))


def check(
    model: Model,
    data: Any,
    budget: Budget,
    key: Any,
    ledger: Ledger | str | os.PathLike[str] | None,
    dataset: str | None,
    *,
    records: int | None,
    secure: bool,
) -> Request:
    """The request; refused, unspent, where it cannot be met."""
    validation.instance(Budget, budget=budget)
    validation.instance(bool, secure=secure)
    if secure and key is not None:
        raise Refused("secure = True takes its key from the operating system: leave key out")
    account = charges.open_account(ledger, dataset, budget.neighbours)
    source = noises.SecureSource() if secure else noises.derive_key(noises.as_key(key), "release")
    table, model = place_records(model, data, records), take_noise_as_given(model)
    return Request(model=model, table=table, budget=budget, account=account, key=Key(source, key is not None))


def convex(request: Request) -> Request:
    """With a convex model, and rows within its norm bound; refused where the model is none."""
    model, table = convexity.prepare_convex(request.model, request.table)
    return replace(request, model=model, table=table)


def needs_delta(budget: Budget, remedy: str) -> float:
    """The delta of the budget, refused where it is 0."""
    if budget.delta == 0:
        raise Refused(f"delta = 0 cannot be met with Gaussian noise: give delta in (0, 1), such as 1e-6, or {remedy}")
    return budget.delta


def describe(kind: type[Kind], request: Request, **settings: Any) -> Kind:
    """The summary of a release of this kind, with what all of them have."""
    model, secure = request.model, isinstance(request.key.source, noises.SecureSource)
    common = {
        "model": model.name,
        "sampler": kind.name,
        "norm_bound": model.linear.norm_bound if model.linear else None,
        "records": request.records,
        "parameters": request.size,
        "chains": 1,
        "draws": 1,
        "noise": "secure" if secure else "default",
    }
    return kind(**common | settings)


def pay(
    request: Request,
    event: Event,
    summary: Kind,
    *,
    released: str,
    assumptions: tuple[str, ...] = (ONE_RECORD,),
    public: tuple[np.ndarray, ...] = (),
    verbose: bool = True,
) -> Paid[Kind]:
    """Spend the budget on a release. `public` are arrays that it depends on beside the records."""
    key = request.key
    rounded = ROUNDED.format(256 if summary.noise == "secure" else 64)
    purchase = Purchase(
        event=event,
        summary=summary,
        released=released,
        assumptions=(*assumptions, DOMAIN, rounded, *([GIVEN_KEY] if key.given else [])),
        data=request.table._replace(arrays=request.data),
        public=public,
        details=lambda: {"settings": request.model.settings, "model": model_digest(request.model, request.data)},
        remedy="give a larger delta",
        what="release",
        note=f"confide.baselines.{summary.sampler}",
    )
    return spend(purchase, request.budget, request.account, key, verbose=verbose)


def posterior(
    request: Request, paid: Paid[Any], draws: np.ndarray, arguments: dict[str, Any], model: Model | None = None
) -> Posterior:
    """Flat draws (draws, parameters) as the parameters of the model, in single precision. `arguments` are those of the
    baseline, as they were given: with them it is planned again."""
    assert request.model.linear is not None
    outputs = request.model.linear.outputs
    shaped = np.asarray(draws, np.float32).reshape(1, len(draws), -1, *outputs)
    columns = request.data[0].shape[1]
    tree = {"weights": shaped[:, :, :columns]}
    if request.model.linear.intercept:
        tree["intercept"] = shaped[:, :, columns]
    given = {name: value for name, value in arguments.items() if value is not None}
    plan = paid.summary.to_json() | {"request": {"baseline": paid.summary.sampler, **given}}
    plan |= {"arrays": [list(array.shape[1:]) for array in request.data]}
    return Posterior(draws=tree, guarantee=paid.guarantee, plan=plan, model=model or request.model)
