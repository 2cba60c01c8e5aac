"""A warning where far fewer records counted than were declared. It depends on the released number alone."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from confide.inference import summaries
from confide.inference.summaries.regression import RegressionSummary


class FewRecordsWarning(UserWarning):
    """Far fewer records counted than were declared, by the noisy number that the run released."""


def warn_of_few_records(plan: Mapping[str, Any]) -> None:
    summary = summaries.from_json(plan)
    if isinstance(summary, RegressionSummary) and (warning := summary.warning()):
        warnings.warn(warning, FewRecordsWarning, stacklevel=3)
