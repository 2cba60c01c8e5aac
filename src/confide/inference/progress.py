"""A progress bar: steps per second, epsilon spent so far, time left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def show_progress(
    steps: int, spent: Callable[[int], float] | None, wanted: bool | None
) -> Iterator[Callable[[int], None] | None]:
    """A function to report steps to, or None where no bar is wanted; by default on terminals alone."""
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("sampling"),
        BarColumn(),
        TextColumn("{task.completed:,} of {task.total:,} steps"),
        TextColumn("{task.fields[speed]}"),
        TextColumn("{task.fields[spent]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=False) as bar:
        task = bar.add_task("sampling", total=steps, speed="", spent="")

        def report(done: int) -> None:
            elapsed = bar.tasks[0].elapsed or 0.0
            speed = f"{done / elapsed:,.0f} steps/s" if elapsed > 0 else ""
            cost = "" if spent is None else f"epsilon {spent(done):.3g}"
            bar.update(task, completed=done, speed=speed, spent=cost)

        yield report
