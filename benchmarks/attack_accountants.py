"""Prices of random events against independent lower bounds on the truth: `python benchmarks/attack_accountants.py`.

Options: `--count 10000`, `--seed 1`, `--sabotage` (every price is multiplied by 0.97, which must be caught).

Every configuration is drawn from the whole range that is accepted: noise multipliers from 1e-6 to 1e6 and beyond,
sampling probabilities from 1e-12 to 1, 1 to 1e15 steps, both neighbouring relations, delta from 1e-15 to 0.5. Most are
drawn so that the answer is neither 0 nor 1, where there is something to get wrong. Every accountant that gives
guarantees prices it: the epsilon at a delta, and the delta at an epsilon. A price is a violation where
`lower_bounds.py`, which shares no code with the accountants, proves more. Exit code 1 if there is one.

The margin of a price is 1 - (proven delta) / (claimed delta), of a log-moment or of an exact epsilon likewise: the
smallest of each kind is printed, and how many were within 10%, so that it is seen that the attack has teeth.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

import mpmath
import numpy as np

import lower_bounds
from confide import accountants, events
from confide.privacy.accountants.individual import Filter
from confide.privacy.budget import Budget
from confide.privacy.events import Event, Neighbours
from confide.privacy.filters import Account
from confide.validation import Refused
from lower_bounds import Kind

SABOTAGE = 0.97
OTHERS = ("moments", "moments", "moments-classical", "gdp", "advanced")
Proof = Callable[[float], float]


class Case(NamedTuple):
    """An event, a relation, and a proof: from an epsilon to a delta that it cannot be below."""

    kind: str
    event: Event
    neighbours: Neighbours
    proof: Proof
    setting: str


class Finding(NamedTuple):
    kind: str
    accountant: str
    margin: float
    words: str


class Draw:
    """Random numbers over many orders of magnitude."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def log(self, low: float, high: float) -> float:
        return float(10 ** self.rng.uniform(math.log10(low), math.log10(high)))

    def relation(self) -> Neighbours:
        return events.NEIGHBOURS[int(self.rng.integers(2))]

    def probability(self) -> float:
        """Of sampling: mostly small, at times next to 1."""
        return self.log(1e-12, 1.0) if self.rng.random() < 0.85 else 1 - self.log(1e-9, 0.5)

    def steps(self) -> int:
        return int(self.log(1, 1e4)) if self.rng.random() < 0.4 else int(self.log(1, 1e15))

    def noise(self, q: float, steps: float, sensitivity: float) -> float:
        """Mostly such that all steps together are about mu-Gaussian-DP with mu from 0.001 to 10."""
        if self.rng.random() < 0.15:
            return self.log(1e-2, 1e6)
        spread = self.log(1e-3, 10) / (sensitivity * q * math.sqrt(steps))  # sqrt(e^(1/sigma^2) - 1)
        return min(1 / math.sqrt(math.log1p(spread**2)), 1e6)


def sides(neighbours: Neighbours) -> tuple[str, ...]:
    return ("remove", "add") if neighbours == "add-remove" else ("replace",)


def proof_of(
    steps: list[tuple[float, float, float]], others: list[Kind], failure: float, relation: Neighbours
) -> Proof:
    """Of (noise multiplier, sampling probability, count) and other releases; full batches are Gaussian shifts."""
    sensitivity = 1.0 if relation == "add-remove" else 2.0
    full = math.sqrt(math.fsum(count * (sensitivity / sigma) ** 2 for sigma, q, count in steps if q == 1))
    whole = [lower_bounds.shift_kind(full)] if full else []
    lists = [
        [lower_bounds.gaussian_kind(s, q, count, side) for s, q, count in steps if q < 1] + whole + others
        for side in sides(relation)
    ]

    def delta(epsilon: float) -> float:
        """Both ways round where that may matter: a record's removal is the harder to hide where delta is small."""
        found = lower_bounds.delta(lists[0], epsilon)
        if len(lists) > 1 and found > 1e-4:
            found = max(found, lower_bounds.delta(lists[1], epsilon))
        return failure + (1 - failure) * found

    return delta


def shift_proof(mu: float) -> Proof:
    """The exact profile of a Gaussian shift, in 60 digits."""

    def delta(epsilon: float) -> float:
        with mpmath.workdps(60):
            m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
            return float(mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m))

    return delta


def one_step_proof(sigma: float, q: float, relation: Neighbours) -> Proof:
    """The exact profile of one step, in 60 digits: Neyman and Pearson's half-lines."""

    def delta(epsilon: float) -> float:
        with mpmath.workdps(60):
            m, p, a = 1 / mpmath.mpf(sigma), mpmath.mpf(q), mpmath.exp(mpmath.mpf(epsilon))
            found = []
            if relation == "replace-one":
                # q e^(m z - m^2/2) - a q e^(-m z - m^2/2) = (a - 1) (1 - q), solved for z
                b = (a - 1) * (1 - p) / p * mpmath.exp(m * m / 2)
                z = mpmath.log((b + mpmath.sqrt(b * b + 4 * a)) / 2) / m
                found.append(p * mpmath.ncdf(m - z) - a * p * mpmath.ncdf(-m - z) - (a - 1) * (1 - p) * mpmath.ncdf(-z))
            else:
                z = mpmath.log(1 + (a - 1) / p) / m + m / 2
                found.append(p * mpmath.ncdf(m - z) + (1 - p - a) * mpmath.ncdf(-z))
                if 1 / a > 1 - p:  # N(0) against the mixture: below the z where the mixture is 1/a
                    z = mpmath.log((1 / a - 1 + p) / p) / m + m / 2
                    found.append((1 - a * (1 - p)) * mpmath.ncdf(z) - a * p * mpmath.ncdf(z - m))
            return float(max(found))

    return delta


def response_proof(pure: float, count: int) -> Proof:
    """Randomised response, exactly for one, by binomial sums in 40 digits for a few, by scores for many."""
    if count > 60:
        kind = [lower_bounds.response_kind(pure, count)]
        return lambda epsilon: lower_bounds.delta(kind, epsilon)

    def delta(epsilon: float) -> float:
        with mpmath.workdps(40):
            e, p, total = mpmath.mpf(epsilon), mpmath.mpf(pure), mpmath.mpf(0)
            for k in range(count + 1):
                loss = (2 * k - count) * p
                if loss > e:
                    chance = mpmath.binomial(count, k) * mpmath.exp(k * p) / (1 + mpmath.exp(p)) ** count
                    total += chance * -mpmath.expm1(e - loss)
            return float(total)

    return delta


def full_batches(draw: Draw) -> Case:
    relation, steps = draw.relation(), draw.steps()
    sigma = draw.noise(1.0, steps, 2.0) if draw.rng.random() < 0.7 else draw.log(1e-3, 1e6)
    mu = math.sqrt(steps) * (1.0 if relation == "add-remove" else 2.0) / sigma
    return Case("full batches", events.gaussian(sigma, 1.0, steps), relation, shift_proof(mu), f"{sigma} {steps}")


def one_step(draw: Draw) -> Case:
    relation, q = draw.relation(), draw.probability()
    sigma = draw.log(1e-2, 1e2) if draw.rng.random() < 0.8 else draw.log(1e-6, 1e6)
    return Case("one step", events.gaussian(sigma, q), relation, one_step_proof(sigma, q, relation), f"{sigma} {q}")


def equal_steps(draw: Draw) -> Case:
    relation, q, steps = draw.relation(), draw.probability(), draw.steps()
    sigma = draw.noise(q, steps, 1.0 if relation == "add-remove" else 2.0)
    proof = proof_of([(sigma, q, steps)], [], 0.0, relation)
    return Case("equal steps", events.gaussian(sigma, q, steps), relation, proof, f"{sigma} {q} {steps}")


def schedules(draw: Draw) -> Case:
    relation, count, repeats = draw.relation(), int(draw.log(2, 13)), draw.steps() // 13 + 1
    q = np.full(count, draw.probability())
    if draw.rng.random() < 0.3:
        q = q * draw.rng.uniform(0.3, 1.0, count)
    q[draw.rng.random(count) < 0.1] = 1.0 if repeats < 100 else q[0]
    sensitivity = 1.0 if relation == "add-remove" else 2.0
    sigma = draw.noise(float(q.max()), count * repeats, sensitivity) * draw.rng.uniform(1, draw.log(1.001, 30), count)
    event = events.compose(events.gaussian(sigma, q), repeats=repeats)
    proof = proof_of([(s, p, repeats) for s, p in zip(sigma.tolist(), q.tolist(), strict=True)], [], 0.0, relation)
    return Case("schedules", event, relation, proof, f"{sigma.tolist()} {q.tolist()} {repeats}")


def compositions(draw: Draw) -> Case:
    """Steps with a Gaussian or posterior release, a pure one, and one that may fail."""
    relation, q, steps = draw.relation(), draw.probability(), draw.steps()
    sigma = draw.noise(q, steps, 1.0 if relation == "add-remove" else 2.0)
    parts, others, failure = [events.gaussian(sigma, q, steps)], [], 0.0
    chosen = draw.rng.random(3) < 0.6
    if chosen[0]:
        mu = draw.log(1e-3, 5)
        released = events.GaussianRelease(mu=mu, neighbours=relation)
        if draw.rng.random() < 0.5:
            bound = mu / (1.0 if relation == "add-remove" else 2.0)
            released = events.PosteriorSample(gradient_bound=bound, strong_convexity=1.0)
        parts.append(released)
        others.append(lower_bounds.shift_kind(mu))
    if chosen[1]:
        pure = draw.log(1e-4, 5)
        parts.append(events.Release(epsilon=pure, neighbours=relation))
        others.append(lower_bounds.response_kind(pure, 1))
    if chosen[2]:
        failure = draw.log(1e-14, 1e-3)
        parts.append(events.Release(epsilon=0.0, delta=failure, neighbours=relation))
    proof = proof_of([(sigma, q, steps)], others, failure, relation)
    return Case("compositions", events.compose(*parts), relation, proof, str([part.to_json() for part in parts]))


def pure_releases(draw: Draw) -> Case:
    relation, count = draw.relation(), draw.steps()
    pure = draw.log(1e-3, 10) / math.sqrt(count)
    event = events.compose(events.Release(epsilon=pure, neighbours=relation), repeats=count)
    return Case("pure releases", event, relation, response_proof(pure, count), f"{pure} {count}")


def last_iterates(draw: Draw) -> Case:
    """A quadratic potential, for which the last iterate is exactly Gaussian: its mean and variance by recursion."""
    relation, steps = draw.relation(), int(draw.log(1, 3000))
    convexity = draw.log(1e-6, 1e3)
    size = draw.log(1e-8, 1.0) / convexity
    temperature, bound = draw.log(1e-3, 1e3), draw.log(1e-3, 10)
    smoothness = min(2 / size - convexity, 1e9 * convexity)
    event = events.LastIterates(
        step_sizes=size,
        releases=(steps,),
        strong_convexity=convexity,
        smoothness=max(smoothness, convexity),
        gradient_bound=bound,
        temperature=temperature,
    )
    with mpmath.workdps(40):
        h, keep = mpmath.mpf(size), 1 - mpmath.mpf(size) * convexity
        mean = variance = mpmath.mpf(0)
        for _ in range(steps):
            mean, variance = keep * mean + h * bound, keep**2 * variance + 2 * h * temperature
        mu = float(mean / mpmath.sqrt(variance)) * (1.0 if relation == "add-remove" else 2.0)
    return Case("last iterates", event, relation, shift_proof(mu), f"{size} {convexity} {steps} {temperature} {bound}")


def filters(draw: Draw) -> Case:
    """A filter that a record of one constant norm just passes: all of its steps are in."""
    q, steps, order = min(draw.probability(), 0.999), int(draw.log(1, 1e6)), int(draw.log(2, 200))
    sigma = max(draw.noise(q, steps, 1.0), 0.05)
    largest = draw.rng.uniform(1.0, 4.0) / sigma
    table = Filter(limit=1.0, order=order, sampling_probability=q, largest=largest)
    limit = steps * float(table.costs(np.array([1 / sigma]))[0]) * (1 + 1e-12)
    event = Filter(limit=min(limit, 1e90), order=order, sampling_probability=q, largest=largest).event(
        steps, draw.log(1e-12, 1e-2)
    )
    proof = proof_of([(sigma, q, steps)], [], 0.0, "add-remove")
    return Case("filters", event, "add-remove", proof, f"{sigma} {q} {steps} {order} {largest}")


KINDS = {  # how often, beside the ledger's: those with proofs in closed form are quick
    full_batches: 0.14,
    one_step: 0.2,
    equal_steps: 0.22,
    schedules: 0.04,
    compositions: 0.08,
    pure_releases: 0.12,
    last_iterates: 0.08,
    filters: 0.12,
}


def attack(case: Case, draw: Draw, scale: float) -> Iterator[Finding]:
    """Both prices of the tight accountant, and one or two of another, each multiplied by `scale`, against the proof."""
    delta, share = draw.log(1e-15, 0.5), float(draw.rng.uniform(0.05, 1.2))
    for name in ("pld", OTHERS[int(draw.rng.integers(len(OTHERS)))]):
        profile = accountants.profile(case.event, case.neighbours, name)
        if profile.status == "approximate":
            continue
        try:
            epsilon = profile.epsilon(delta)
            claimed = {"epsilon": (epsilon * scale, delta)}
            if epsilon < math.inf and name != "advanced":
                other = min(epsilon * share, 1e6)
                claimed["delta"] = (other, profile.delta(other) * scale)
        except Refused:
            continue
        except Exception as error:  # whatever is accepted has a price
            yield Finding(case.kind, name, -math.inf, f"{error!r} of {case.setting}, {case.neighbours}, {delta!r}")
            continue
        for what, (at, claim) in claimed.items():
            if at < 1e6:
                proven = case.proof(at)
                margin = 1 - proven / claim if claim > 0 else -math.inf if proven > 0 else 1.0
                words = f"{name}: ({at!r}, {claim!r}) but delta is at least {proven!r}"
                yield Finding(case.kind, name, margin, f"{what} of {case.setting}, {case.neighbours}, by {words}")


def attack_moments(draw: Draw, scale: float) -> Iterator[Finding]:
    """What a `renyi` ledger adds up, against the log-moment on cells."""
    relation, q, steps = draw.relation(), min(draw.probability(), 0.999999), draw.steps()
    sigma = max(draw.noise(q, steps, 1.0), 0.05)
    budget = Budget(epsilon=draw.log(0.05, 50), delta=draw.log(1e-12, 1e-3), neighbours=relation)
    try:
        account = Account.checked("d", budget, "renyi")
    except Refused:
        return
    order, capacity = account.capacity()
    claim = account.share(events.gaussian(sigma, q, steps)) * capacity * (order - 1) * scale
    kinds = [[lower_bounds.gaussian_kind(sigma, q, steps, side)] for side in sides(relation)]
    proven = max(lower_bounds.log_moment(k, order) for k in kinds)
    words = f"order {order} of {sigma} {q} {steps}, {relation}: {claim!r} but it is at least {proven!r}"
    yield Finding("renyi ledger", "moments", 1 - proven / claim, words)


def run(count: int, seed: int, scale: float = 1.0, report: Callable[[str], None] = lambda text: None) -> list[Finding]:
    """`count` configurations; those of the Renyi ledger are as many as those of one step."""
    draw, found = Draw(seed), []
    makers, weights = list(KINDS), np.array(list(KINDS.values()))
    started = time.perf_counter()
    for index in range(count):
        if draw.rng.random() < 0.1:
            made = list(attack_moments(draw, scale))
        else:
            try:
                case = makers[int(draw.rng.choice(len(makers), p=weights / weights.sum()))](draw)
            except Refused:  # beyond what is accepted
                continue
            made = list(attack(case, draw, scale))
        found += [finding._replace(words=f"[{index}] {finding.words}") for finding in made]
        for finding in violations(made):
            report(f"[{index}] {finding}")
        if (index + 1) % 500 == 0:
            report(f"{index + 1} configurations, {time.perf_counter() - started:.0f} s")
    return found


def violations(found: list[Finding]) -> list[Finding]:
    return [finding for finding in found if finding.margin < 0]


def table(found: list[Finding]) -> str:
    lines = [
        f"{'kind':16} {'accountant':18} {'prices':>7} {'within 10%':>10} {'violations':>10} {'smallest margin':>16}"
    ]
    for kind, name in sorted({(f.kind, f.accountant) for f in found}):
        margins = np.array([f.margin for f in found if (f.kind, f.accountant) == (kind, name)])
        near, wrong = int((margins < 0.1).sum()), int((margins < 0).sum())
        lines.append(f"{kind:16} {name:18} {margins.size:7} {near:10} {wrong:10} {margins.min():16.3g}")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Prices against lower bounds")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sabotage", action="store_true", help="multiply every price by 0.97: must exit with 1")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    start = time.perf_counter()
    findings = run(
        options.count, options.seed, SABOTAGE if options.sabotage else 1.0, lambda text: print(text, file=sys.stderr)
    )
    wrong = violations(findings)
    print(table(findings))
    print(
        f"{options.count} configurations, seed {options.seed}, {len(findings)} prices, {len(wrong)} violations, "
        f"{time.perf_counter() - start:.0f} s"
    )
    for finding in wrong[:20]:
        print(f"  VIOLATION {finding.margin:.3g}: {finding.words}")
    sys.exit(bool(wrong))
