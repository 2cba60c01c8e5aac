"""Bayesian learning on sensitive data, with a privacy guarantee that the run itself derives.

Names are imported when first used, so that `import confide` stays fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confide.accountants.bayesian import SpreadWarning, Typical, bayesian_epsilon
    from confide.accounting import ApproximateWarning, delta, epsilon, gdp_epsilon, gdp_mu, guarantee, verify
    from confide.accounts import Individual
    from confide.audits.bounds import audit_epsilon
    from confide.audits.planted import audit
    from confide.audits.threshold import threshold_attack
    from confide.audits.verdicts import Audit
    from confide.budget import Budget, Guarantee
    from confide.calibration import calibrate, calibrate_noise, calibrate_steps
    from confide.checks import Refused
    from confide.contractions import last_iterate_mu
    from confide.estimators import (
        PrivateLinearRegression,
        PrivateLogisticRegression,
        PrivateSoftmaxClassifier,
        SpendsBudgetWarning,
    )
    from confide.fitting import fit, sample
    from confide.inputs import outside
    from confide.leakage import Leakage, leakage_test
    from confide.ledger import BudgetExceeded, Ledger
    from confide.planning import Plan, plan
    from confide.posterior import ExactnessWarning, NotPrivateWarning, Posterior
    from confide.samplers import (
        Sampler,
        dp_adam,
        dp_sgd,
        dpvi,
        hybrid,
        langevin,
        one_posterior_sample,
        psgld,
        sgfs,
        sghmc,
        sgld,
        sgnht,
        wang2015_sgld,
    )
    from confide.step_sizes import step_size

__version__ = "0.1.0"

_HOMES = {
    "ApproximateWarning": "accounting",
    "Audit": "audits.verdicts",
    "Budget": "budget",
    "BudgetExceeded": "ledger",
    "ExactnessWarning": "posterior",
    "Guarantee": "budget",
    "Individual": "accounts",
    "Leakage": "leakage",
    "Ledger": "ledger",
    "NotPrivateWarning": "posterior",
    "Plan": "planning",
    "Posterior": "posterior",
    "PrivateLinearRegression": "estimators",
    "PrivateLogisticRegression": "estimators",
    "PrivateSoftmaxClassifier": "estimators",
    "Refused": "checks",
    "Sampler": "samplers",
    "SpendsBudgetWarning": "estimators",
    "SpreadWarning": "accountants.bayesian",
    "Typical": "accountants.bayesian",
    "audit": "audits.planted",
    "audit_epsilon": "audits.bounds",
    "bayesian_epsilon": "accountants.bayesian",
    "calibrate": "calibration",
    "calibrate_noise": "calibration",
    "calibrate_steps": "calibration",
    "delta": "accounting",
    "dp_adam": "samplers",
    "dp_sgd": "samplers",
    "dpvi": "samplers",
    "epsilon": "accounting",
    "fit": "fitting",
    "gdp_epsilon": "accounting",
    "gdp_mu": "accounting",
    "guarantee": "accounting",
    "hybrid": "samplers",
    "langevin": "samplers",
    "last_iterate_mu": "contractions",
    "leakage_test": "leakage",
    "one_posterior_sample": "samplers",
    "outside": "inputs",
    "plan": "planning",
    "psgld": "samplers",
    "sample": "fitting",
    "sgfs": "samplers",
    "sghmc": "samplers",
    "sgld": "samplers",
    "sgnht": "samplers",
    "step_size": "step_sizes",
    "threshold_attack": "audits.threshold",
    "verify": "accounting",
    "wang2015_sgld": "samplers",
}
_MODULES = (
    "accountants",
    "accounting",
    "accounts",
    "audits",
    "balls",
    "baselines",
    "batches",
    "budget",
    "calibration",
    "canaries",
    "charges",
    "checkpoints",
    "checks",
    "contractions",
    "convexity",
    "data",
    "demonstration",
    "drafts",
    "encoding",
    "estimators",
    "events",
    "experiments",
    "features",
    "files",
    "filters",
    "fitting",
    "gradients",
    "inputs",
    "jobs",
    "kernel",
    "leakage",
    "ledger",
    "metropolis",
    "models",
    "noise",
    "pending",
    "picture_files",
    "pictures",
    "planning",
    "posterior",
    "predictions",
    "preparation",
    "progress",
    "report",
    "request",
    "run",
    "samplers",
    "scaling",
    "schema",
    "shares",
    "statements",
    "step_sizes",
    "tables",
    "tabular",
    "targets",
)

__all__ = [
    "ApproximateWarning",
    "Audit",
    "Budget",
    "BudgetExceeded",
    "ExactnessWarning",
    "Guarantee",
    "Individual",
    "Leakage",
    "Ledger",
    "NotPrivateWarning",
    "Plan",
    "Posterior",
    "PrivateLinearRegression",
    "PrivateLogisticRegression",
    "PrivateSoftmaxClassifier",
    "Refused",
    "Sampler",
    "SpendsBudgetWarning",
    "SpreadWarning",
    "Typical",
    "audit",
    "audit_epsilon",
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
    "sample",
    "sgfs",
    "sghmc",
    "sgld",
    "sgnht",
    "step_size",
    "threshold_attack",
    "verify",
    "wang2015_sgld",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"confide.{_HOMES[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"confide.{name}")
    raise AttributeError(f"module 'confide' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
