"""Audits: attacks that score records, and what their scores prove about epsilon.

| attack | what the attacker has | score |
|--------|-----------------------|-------|
| `threshold` | the model's predictions | minus the loss of a record, or another number of its prediction |
| `optimal` | draws, and the posterior of the other records | log odds of membership (wu2020, Lemma 1) |
| `shadow` | predictions, records like the target's, its training | log odds, learnt from other models |
| `lira` | the same | log likelihood ratio over models with a record and without it |

`audit_epsilon` turns scores into a lower bound on epsilon; `audit` plants canaries in a run and judges its claim.

Each attack gives `Scores`: one number for each record, higher where it looks like a member. `mpl` is the leakage of
wu2020. Members and nonmembers are pairs (X, y); `distinct` looks for records that are both. The model is a `Posterior`,
anything with `predict_proba`, or a function from X to probabilities. `networks` makes a trainer of many networks at
once, for the attacker; they are not private.
"""

from __future__ import annotations

from confide.audits.bounds import audit_epsilon
from confide.audits.lira import lira
from confide.audits.losses import OverlapWarning, distinct, draw_losses, losses, probabilities
from confide.audits.optimal import Mpl, mpl, optimal, theorem1
from confide.audits.planted import audit
from confide.audits.pools import one_by_one
from confide.audits.scores import Scores
from confide.audits.shadow import shadow
from confide.audits.threshold import threshold, threshold_attack
from confide.audits.training import networks
from confide.audits.verdicts import Audit

__all__ = [
    "Audit",
    "Mpl",
    "OverlapWarning",
    "Scores",
    "audit",
    "audit_epsilon",
    "distinct",
    "draw_losses",
    "lira",
    "losses",
    "mpl",
    "networks",
    "one_by_one",
    "optimal",
    "probabilities",
    "shadow",
    "theorem1",
    "threshold",
    "threshold_attack",
]
