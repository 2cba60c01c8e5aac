"""A warning where delta is too large for a number of records: a guarantee would then allow to publish one of them."""

from __future__ import annotations

import warnings


class LargeDeltaWarning(UserWarning):
    """Delta is not below one over the number of records, so that the guarantee allows a record to be published."""


def describe_large_delta(delta: float, records: int) -> str:
    """What such a delta means; empty where it is below one over the number of records.

    A mechanism that publishes each record in full with probability delta, and nothing else, is (0, delta)-private: from
    delta = 1/n on it publishes one of n records on average.
    """
    if delta * records < 1:
        return ""
    return (
        f"delta {delta:.3g} is not below 1/n for n = {records:,} records: a mechanism that releases one record in full "
        f"with probability delta would be allowed; take a delta far below 1/n, such as {0.1 / records:.1g}"
    )


def warn_of_large_delta(delta: float, records: int) -> None:
    """Warn in Python, and on the standard error of the command line, whether or not a plan is printed."""
    if message := describe_large_delta(delta, records):
        warnings.warn(message, LargeDeltaWarning, stacklevel=3)
