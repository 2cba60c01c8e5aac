"""Staged datasets: tests that need one are skipped, with the reason, where it is not there."""

import os
from pathlib import Path

import pytest

needs_data = pytest.mark.skipif(
    not Path(os.environ.get("CONFIDE_DATA") or "/nowhere").is_dir(),
    reason="CONFIDE_DATA does not name a folder of datasets",
)
