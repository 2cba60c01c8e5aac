"""Shared by all tests: hypothesis without deadlines and the same in every run; compiled programs kept between runs."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

settings.register_profile("confide", deadline=None, derandomize=True, print_blob=False)
settings.load_profile("confide")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Where the datasets must be there, a test skipped for want of one has failed."""
    outcome = yield
    report = outcome.get_result()
    if report.skipped and os.environ.get("CONFIDE_DATA_REQUIRED") and "CONFIDE_DATA" in str(report.longrepr):
        report.outcome = "failed"
        report.longrepr = f"skipped where datasets are required: {report.longrepr}"
