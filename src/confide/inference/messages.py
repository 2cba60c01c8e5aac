"""What a run says of itself: its plan, on paper and on the terminal, what it assumes, and what it has spent so far."""

from __future__ import annotations

import math
from typing import Any

from confide.inference.posterior import Diagnostics
from confide.mechanism.noise import Noise
from confide.privacy.accountants import profile
from confide.privacy.budget import Guarantee
from confide.privacy.events import Event

FEW = 3  # records for each parameter: fewer say little
LARGE = 4_000_000  # numbers in the draws: more are worth a word


def printed(plan: dict[str, Any], guarantee: Guarantee) -> str:
    """The plan for the terminal."""
    budget, first = plan["budget"], plan.get("first")
    beside = f" and {plan['canaries']} canaries" if "canaries" in plan else ""
    lines = [
        f"{plan['model']} with {plan['parameters']} parameters on {plan['records']} records{beside}, "
        f"by {plan['sampler']}"
    ]
    if first is not None:
        lines += [f"each chain starts at a draw by {first['sampler']}, then {plan['then']}:", *_course(first)]
    lines += _course(plan)
    if "individual" in plan:
        lines.append(
            "every record pays for its own gradients; one whose gradients are all as long as the clip would spend "
            f"{plan['individual']['stretch']:.3g} times the budget at most, and is left out when it has spent all"
        )
    lines.append(
        f"costs epsilon {guarantee.epsilon:.4g} at delta {guarantee.delta:.3g} ({guarantee.neighbours}), "
        f"of a budget of {budget['epsilon']:g}" + _rest(guarantee, plan)
    )
    lines += [warning for warning in (mostly_prior(plan), risky(guarantee, plan)) if warning]
    return "confide plan: " + "\n  ".join(lines)


def _course(plan: dict[str, Any]) -> list[str]:
    """What the steps are, and how far they lead."""
    if plan["sampler"] == "ops":
        return _sample(plan)
    size = f"{plan['step_size']:.4g}"
    if plan["last_step_size"] != plan["step_size"]:
        size += f" falling to {plan['last_step_size']:.4g}"
    full = plan["batch_size"] == plan["records"]
    batches = "full batches" if full else f"Poisson batches of {plan['batch_size']}"
    steps = f"{plan['chains']} x {plan['steps']} steps of size {size}, {batches}, clip {plan['clip']:g}"
    if "noise_multiplier" in plan:
        return [
            f"{plan['chains']} x {plan['steps']} steps at learning rate {size}, {batches}, clip {plan['clip']:g}, "
            f"noise multiplier {plan['noise_multiplier']:.4g}",
            found(plan),
        ]
    if "likelihood_power" not in plan:
        numbers = plan["chains"] * plan["draws"] * plan["parameters"]
        large = f", {numbers / 1e6:.0f} million numbers" if numbers > LARGE else ""
        return [
            f"{steps}, temperature {plan['temperature']:g}; {plan['draws']} draws kept of each chain{large}",
            f"diffusion time {plan['diffusion_time']:.4g}: directions in which the log likelihood curves by less "
            f"than {1 / plan['diffusion_time']:.1g} a record will not have settled",
        ]
    released = "the last iterate alone is" if plan["draws"] == 1 else f"{plan['draws']} iterates are"
    settled = 1 - math.exp(-2 * plan["settled"])
    return [
        f"{steps}, rows within norm {plan['norm_bound']:.4g}; {released} released of each chain",
        f"{_counted(plan)}; where they say nothing, {settled:.0%} of the prior's variance is reached",
    ]


def found(plan: dict[str, Any]) -> str:
    """What an optimiser finds, and what its draws do not tell."""
    if plan.get("estimate") == "point":
        iterates = "the last iterate" if plan["draws"] == 1 else f"{plan['draws']} iterates"
        kept = "the mean of the second half of the run" if plan["average"] else iterates
        return f"kept of each chain: {kept}, near the mode of the posterior; points have no posterior spread"
    return (
        f"{plan['draws']} draws of each chain are from q, the {plan['family']} approximation that it finds; its spread "
        "is of the posterior alone, and does not count the noise that was added for privacy"
    )


def _counted(plan: dict[str, Any]) -> str:
    power = plan["likelihood_power"]
    prior = f"; prior scale {plan['prior_scale']:.4g}" if "prior_scale" in plan else ""
    return f"the likelihood counts to the power {power:.3g}, as if of {power * plan['records']:,.0f} records{prior}"


def mostly_prior(plan: dict[str, Any]) -> str:
    """What is to be said where hardly anything of the likelihood is left, or of the way to the posterior."""
    if plan.get("likelihood_power", math.inf) * plan["records"] < FEW * plan["parameters"]:
        counted = plan["likelihood_power"] * plan["records"]
        return (
            f"The data count as much as {counted:,.0f} records would, for {plan['parameters']} parameters: the draws "
            "are mostly the prior's. Fewer draws, or a larger budget, would let the data say more."
        )
    if 1 - math.exp(-2 * plan.get("settled", math.inf)) < 0.5:
        return (
            "The run is too short to have settled: where the data say little, the draws are nearer to zero than the "
            "posterior is. More steps would settle it."
        )
    return ""


def _sample(plan: dict[str, Any]) -> list[str]:
    """What is drawn, and by which chains."""
    power, total = plan["likelihood_power"], plan["chains"] * plan["draws"]
    if plan["bound"] == "tight":
        whole = "no gradient is cut" if plan["clip"] is None else f"gradients clipped to {plan['clip']:.4g}"
        held = f"{_counted(plan)}; {whole}"
    else:
        where = "by a cut" if plan["radius"] is None else f"by holding the parameters within {plan['radius']:.4g} of 0"
        held = (
            f"likelihood and prior count to the power {power:.3g}; |log likelihood| of a record is at most "
            f"{plan['log_likelihood_bound']:.4g}, {where}"
        )
    rows = "" if plan["norm_bound"] is None else f", rows within norm {plan['norm_bound']:.4g}"
    several = "one draw" if total == 1 else f"{total} draws, each paid for,"
    return [
        f"{several} from the tempered posterior by the {plan['bound']} bound{rows}",
        held,
        f"{plan['hidden_chains']} hidden chains of {plan['warmup']} + {plan['samples']} transitions "
        f"({plan['algorithm']}); a draw is where a chain ends, taken to be exact",
    ]


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


def _rest(guarantee: Guarantee, plan: dict[str, Any]) -> str:
    if guarantee.epsilon > 0.9 * plan["budget"]["epsilon"]:
        return ""
    if "likelihood_power" in plan:
        return "; the likelihood counts in full, and the rest is not needed" if not mostly_prior(plan) else ""
    if "noise_multiplier" in plan:
        return "; noise_multiplier was given"
    return "; with the rest the steps would be too large to follow the gradient (more steps could use it)"


def risky(guarantee: Guarantee, plan: dict[str, Any]) -> str:
    """What is to be said of a delta that is large for so many records; nothing of a small one."""
    if guarantee.delta * plan["records"] < 1:
        return ""
    return (
        f"delta {guarantee.delta:.3g} is not below one in {plan['records']} records: a mechanism that publishes some "
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


def assumed(noise: Noise, given: bool) -> tuple[str, ...]:
    sentences = ["What the model says of one record depends on that record and the parameters alone.", DOMAIN]
    if noise == "default":
        sentences.append(
            "The bits of noise and batches are those of threefry with a key of 64 bits, and pass for random; noise and "
            "batches follow from them exactly, and the rounding of sums is allowed for in the clip and in the noise."
        )
    if given:
        sentences.append(GIVEN)
    return tuple(sentences)


def spent(event: Event, guarantee: Guarantee) -> float:
    """For the progress bar: what a run would have cost had it ended by now, from the quick accountant."""
    return min(profile(event, guarantee.neighbours, "moments").epsilon(guarantee.delta), guarantee.epsilon)
