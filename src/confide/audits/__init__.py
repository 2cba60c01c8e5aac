"""Audits: attacks that score records, and what their scores prove about epsilon.

`Scores` holds one number for each record, higher where the record looks more like a member.
"""

from __future__ import annotations

from confide.audits.losses import OverlapWarning, distinct, draw_losses, losses, probabilities
from confide.audits.scores import Scores

__all__ = ["OverlapWarning", "Scores", "distinct", "draw_losses", "losses", "probabilities"]
