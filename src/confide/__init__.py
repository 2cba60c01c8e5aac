"""Bayesian learning on sensitive data, with a privacy guarantee that the run itself derives.

Data flow through the folders in this order, and each imports only from those before it:

| folder        | what                                                                          |
|---------------|-------------------------------------------------------------------------------|
| `validation`  | refusals in one line, which name the argument and the remedy                  |
| `privacy`     | what a release reveals, what it costs, and what is left of a budget           |
| `data`        | a table or images, and what is public about them, as arrays                   |
| `models`      | log prior, and log likelihood of one record                                   |
| `mechanism`   | one noisy sum over the records: nothing after it sees a record                |
| `samplers`    | one file for each algorithm                                                   |
| `inference`   | plan, pay, run: a posterior                                                   |
| `audits`      | attacks, and the lower bounds on epsilon that they give                       |
| `experiments` | figures and tables of the papers, over the public names                       |
| `app`         | what people touch: command line, estimators, folders of runs, report          |

Names are imported when first used, so that `import confide` stays fast.
"""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confide import audits as audits
    from confide import data as data
    from confide import models as models
    from confide.app.estimators import (
        PrivateLinearRegression,
        PrivateLogisticRegression,
        PrivateNegativeBinomialRegression,
        PrivatePoissonRegression,
        PrivateSoftmaxClassifier,
        SpendsBudgetWarning,
    )
    from confide.audits.bounds import audit_epsilon
    from confide.audits.leakage import Leakage, leakage_test
    from confide.audits.planted import audit
    from confide.audits.threshold import threshold_attack
    from confide.audits.verdicts import Audit
    from confide.inference import baselines as baselines
    from confide.inference.bootstrap import rehearse
    from confide.inference.few_records import FewRecordsWarning
    from confide.inference.fitting import fit, sample
    from confide.inference.posterior import ExactnessWarning, NotPrivateWarning, Posterior, UnsettledWarning
    from confide.inference.power.forecast import Forecast
    from confide.inference.power.planning import plan
    from confide.inference.rehearsal import Rehearsal
    from confide.models import features as features
    from confide.models.inputs import outside
    from confide.privacy import accountants as accountants
    from confide.privacy import calibration as calibration
    from confide.privacy import events as events
    from confide.privacy.accountants.bayesian import SpreadWarning, Typical, bayesian_epsilon
    from confide.privacy.budget import Budget, Guarantee
    from confide.privacy.calibration import calibrate, calibrate_noise, calibrate_steps
    from confide.privacy.extra_accounts import Individual
    from confide.privacy.large_delta import LargeDeltaWarning
    from confide.privacy.last_iterate import last_iterate_mu
    from confide.privacy.ledger import BudgetExceeded, Ledger
    from confide.privacy.planning import Plan
    from confide.privacy.pricing import ApproximateWarning, delta, epsilon, gdp_epsilon, gdp_mu, guarantee, verify
    from confide.privacy.step_size_theorems import step_size
    from confide.samplers import (
        Sampler,
        baoab,
        dp_adam,
        dp_sgd,
        dpvi,
        hybrid,
        langevin,
        one_posterior_sample,
        psgld,
        scoring,
        sgfs,
        sghmc,
        sgld,
        sgnht,
        sufficient_statistics,
        wang2015_sgld,
    )
    from confide.samplers.companions import Companion, accompany
    from confide.validation import Refused

__version__ = "0.1.0"

FLOORS = (
    "validation",
    "privacy",
    "data",
    "models",
    "mechanism",
    "samplers",
    "inference",
    "audits",
    "experiments",
    "app",
)
_PUBLIC = {  # by the short names that people import them by
    "accountants": "privacy.accountants",
    "baselines": "inference.baselines",
    "calibration": "privacy.calibration",
    "events": "privacy.events",
    "features": "models.features",
}
_HOMES = {
    "validation": "Refused",
    "privacy.accountants.bayesian": "SpreadWarning Typical bayesian_epsilon",
    "privacy.budget": "Budget Guarantee",
    "privacy.calibration": "calibrate calibrate_noise calibrate_steps",
    "privacy.extra_accounts": "Individual",
    "privacy.large_delta": "LargeDeltaWarning",
    "privacy.last_iterate": "last_iterate_mu",
    "privacy.ledger": "BudgetExceeded Ledger",
    "privacy.planning": "Plan",
    "privacy.pricing": "ApproximateWarning delta epsilon gdp_epsilon gdp_mu guarantee verify",
    "privacy.step_size_theorems": "step_size",
    "models.inputs": "outside",
    "samplers": "Sampler baoab dp_adam dp_sgd dpvi hybrid langevin one_posterior_sample psgld scoring sgfs sghmc sgld "
    "sgnht sufficient_statistics wang2015_sgld",
    "samplers.companions": "Companion accompany",
    "inference.fitting": "fit sample",
    "inference.power.forecast": "Forecast",
    "inference.power.planning": "plan",
    "inference.few_records": "FewRecordsWarning",
    "inference.posterior": "ExactnessWarning NotPrivateWarning Posterior UnsettledWarning",
    "inference.rehearsal": "Rehearsal",
    "inference.bootstrap": "rehearse",
    "audits.bounds": "audit_epsilon",
    "audits.leakage": "Leakage leakage_test",
    "audits.planted": "audit",
    "audits.threshold": "threshold_attack",
    "audits.verdicts": "Audit",
    "app.estimators": "PrivateLinearRegression PrivateLogisticRegression PrivateNegativeBinomialRegression "
    "PrivatePoissonRegression PrivateSoftmaxClassifier SpendsBudgetWarning",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = [
    "ApproximateWarning",
    "Audit",
    "Budget",
    "BudgetExceeded",
    "Companion",
    "ExactnessWarning",
    "FewRecordsWarning",
    "Forecast",
    "Guarantee",
    "Individual",
    "LargeDeltaWarning",
    "Leakage",
    "Ledger",
    "NotPrivateWarning",
    "Plan",
    "Posterior",
    "PrivateLinearRegression",
    "PrivateLogisticRegression",
    "PrivateNegativeBinomialRegression",
    "PrivatePoissonRegression",
    "PrivateSoftmaxClassifier",
    "Refused",
    "Rehearsal",
    "Sampler",
    "SpendsBudgetWarning",
    "SpreadWarning",
    "Typical",
    "UnsettledWarning",
    "accompany",
    "audit",
    "audit_epsilon",
    "baoab",
    "bayesian_epsilon",
    "calibrate",
    "calibrate_noise",
    "calibrate_steps",
    "delta",
    "dp_adam",
    "dp_sgd",
    "dpvi",
    "epsilon",
    "fit",
    "gdp_epsilon",
    "gdp_mu",
    "guarantee",
    "hybrid",
    "langevin",
    "last_iterate_mu",
    "leakage_test",
    "one_posterior_sample",
    "outside",
    "plan",
    "psgld",
    "rehearse",
    "sample",
    "scoring",
    "sgfs",
    "sghmc",
    "sgld",
    "sgnht",
    "step_size",
    "sufficient_statistics",
    "threshold_attack",
    "verify",
    "wang2015_sgld",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"confide.{_HOME[name]}"), name)
    if name in _PUBLIC or name in FLOORS:
        return _open(importlib.import_module(f"confide.{_PUBLIC.get(name, name)}"))
    raise AttributeError(f"module 'confide' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PUBLIC, *FLOORS})


class _Folder(ModuleType):
    """A folder whose modules are imported when first used; where a function has the name of its module, it is meant."""

    def __getattr__(self, name: str) -> Any:
        whole = f"{self.__name__}.{name}"
        try:
            return _open(importlib.import_module(whole))
        except ModuleNotFoundError as error:
            if error.name != whole:
                raise
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}") from None

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, ModuleType) and callable(vars(self).get(name))):
            super().__setattr__(name, value)


def _open(module: ModuleType) -> ModuleType:
    if hasattr(module, "__path__"):
        module.__class__ = _Folder
    return module


class _ShortNames(MetaPathFinder, Loader):
    """`from confide.events import ...`: the module that lies in a folder, under its short name."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        first, *rest = fullname.split(".")[1:] or [""]
        if not fullname.startswith("confide.") or first not in _PUBLIC:
            return None
        return ModuleSpec(fullname, self, origin=".".join(["confide", _PUBLIC[first], *rest]))

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        assert spec.origin is not None
        module = _open(importlib.import_module(spec.origin))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has run; only its own description is put back."""
        state = module.__spec__.loader_state if module.__spec__ is not None else None
        if isinstance(state, ModuleSpec):
            module.__spec__ = state


if not any(isinstance(finder, _ShortNames) for finder in sys.meta_path):
    sys.meta_path.insert(0, _ShortNames())  # before that of files, which would load a second copy
