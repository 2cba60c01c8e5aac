"""When the cases of a test are run: always, in continuous integration, or by `make thorough`."""

import pytest


def tiered(cases, quick=(), thorough=()):
    """Parameters for `pytest.mark.parametrize`: what is neither quick nor thorough is long."""

    def mark(case):
        return [] if case in quick else pytest.mark.thorough if case in thorough else pytest.mark.long

    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=mark(case)) for case in cases]
