"""What a run says of itself: its plan, on paper and on the terminal, what it assumes, and what it has spent so far."""

from __future__ import annotations

from confide.inference.posterior import Diagnostics
from confide.inference.summaries import Priced
from confide.mechanism.noise import Noise
from confide.privacy.accountants import profile
from confide.privacy.budget import Guarantee
from confide.privacy.events import Event


def terminal(summary: Priced, guarantee: Guarantee) -> str:
    """The plan for the terminal."""
    limit = (summary.budget or {}).get("epsilon", guarantee.epsilon)
    unspent = "" if guarantee.epsilon > 0.9 * limit else summary.unspent()
    cost = (
        f"costs epsilon {guarantee.epsilon:.4g} at delta {guarantee.delta:.3g} ({guarantee.neighbours}), "
        f"of a budget of {limit:g}{unspent}"
    )
    warnings = [warning for warning in (summary.warning(), risky(guarantee, summary.records)) if warning]
    return "confide plan: " + "\n  ".join([summary.head(), *summary.lines(), cost, *warnings])


def hidden(found: Diagnostics) -> str:
    """What the analyst is told of the hidden chains."""
    return (
        f"  hidden chains, at the worst parameter: R-hat {found.r_hat:.3f}, effective sample size "
        f"{found.effective:,.0f} (computed from the records and NOT covered by the guarantee: do not publish this line)"
    )


def typical(guarantee: Guarantee) -> str:
    """What the analyst is told of typical people."""
    if guarantee.typical is None:
        return "  no estimate for typical people: the sampled records were all alike (do not publish this line)"
    head = "An estimate for typical people: no guarantee, and NOT to be published"
    return "\n  ".join([f"  {head}", *guarantee.typical.sentences()])


def risky(guarantee: Guarantee, records: int) -> str:
    """What is to be said of a delta that is large for so many records; nothing of a small one."""
    if guarantee.delta * records < 1:
        return ""
    return (
        f"delta {guarantee.delta:.3g} is not below one in {records} records: a mechanism that publishes some "
        "record whole would meet it; take a delta far below that"
    )


DOMAIN = (
    "The number of records is the declared one, and shapes and types of the arrays are public; a record with a number "
    "that is missing or infinite, or with an outcome that the model does not know, counts as absent."
)


GIVEN = (
    "The noise was derived from a number that was given by the caller, who kept it secret so that nobody can guess it, "
    "from the records and from all settings."
)


def assumptions(noise: Noise, given: bool) -> tuple[str, ...]:
    sentences = ["What the model says of one record depends on that record and the parameters alone.", DOMAIN]
    if noise == "default":
        sentences.append(
            "The bits of noise and batches are those of threefry with a key of 64 bits, and pass for random; noise and "
            "batches follow from them exactly, and the rounding of sums is allowed for in the clip and in the noise."
        )
    if given:
        sentences.append(GIVEN)
    return tuple(sentences)


def spent_so_far(event: Event, guarantee: Guarantee) -> float:
    """For the progress bar: what a run would have cost had it ended by now, from the quick accountant."""
    return min(profile(event, guarantee.neighbours, "moments").epsilon(guarantee.delta), guarantee.epsilon)
