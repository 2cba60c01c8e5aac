"""The picture of the report in the README: the top of the demonstration's page, in a real browser."""

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from confide.app import demo  # noqa: E402
from helpers.browser import browser  # noqa: E402

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, browser() as page:
        report = demo.run(Path(folder) / "demo", verbose=False).report
        page.open(report, width=860, height=1180)
        page.picture(ROOT / "docs" / "report.png", whole=False)
