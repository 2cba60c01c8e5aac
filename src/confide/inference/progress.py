"""A progress bar: steps per second, epsilon spent so far, time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confide.privacy.accountants import profile
from confide.privacy.budget import Guarantee
from confide.privacy.events import Event


@contextmanager
def show_progress(
    steps: int, spent_after: Callable[[int], Event] | None = None, guarantee: Guarantee | None = None
) -> Iterator[Callable[[int], None]]:
    """A function to report steps to."""
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
            spent = None if spent_after is None or guarantee is None else _epsilon(spent_after(done), guarantee)
            cost = "" if spent is None else f"epsilon {spent:.3g}"
            bar.update(task, completed=done, speed=speed, spent=cost)

        yield report


def _epsilon(event: Event, guarantee: Guarantee) -> float:
    """What a run would have cost had it ended by now, from the quick accountant."""
    return min(profile(event, guarantee.neighbours, "moments").epsilon(guarantee.delta), guarantee.epsilon)
