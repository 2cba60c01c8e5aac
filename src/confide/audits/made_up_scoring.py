"""An audit of the program of private scoring, on made-up tables: the scale, the information and the sums of scores.

Canaries are in the sums of scores alone; scale and information are tested here and nowhere else. What a table shows is
in `confide.audits.scoring_tables`, what is made of it in `confide.audits.scoring_tests`. No record is read, nothing is
spent, and what is found may be published.

At the default confidence a program that keeps its promise is called a violation once in a thousand runs at most,
however often it is audited (`confide.audits.repeated`).
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import numpy as np

from confide import validation
from confide.audits import gathering, regression_program, scoring_publication, scoring_tables, scoring_tests
from confide.audits.made_up_result import POWER, MadeUp, judge_pairs, share, smallest_epsilon
from confide.audits.priced import SAME, priced_claim, reveals_more
from confide.audits.program import GRID, ROUNDING
from confide.audits.rebuilding import source
from confide.audits.scoring_tables import KINDS, Placed, Program, Row
from confide.audits.scoring_tests import Told
from confide.inference.linear.release import LinearRelease
from confide.inference.posterior import Posterior
from confide.inference.regression.release import RegressionRelease
from confide.inference.release import Release
from confide.mechanism import exact_rounding
from confide.validation import Refused

MEANINGS = scoring_tests.MEANINGS | scoring_publication.MEANINGS  # what each test finds where it finds something
FEWEST, MOST = 24, 400  # repetitions
WORK = 2.0**34  # about how many operations all of them take together
OVERHEAD = 2e5  # operations that a question takes whatever its size
ROUNDED_SUMS = 2.0**-20  # in standard deviations of the noise
KEPT = 2**12  # numbers that are kept of a release and repetition
UNITS = 2**17  # numbers in which noise that is used again is looked for
CROWDED = ("up", "across")  # records that also come to a table of others


@dataclass(frozen=True, kw_only=True, repr=False)
class MadeUpScoring(MadeUp):
    """What an audit of private scoring found; see `MadeUp`. Steps are its questions."""

    meanings: ClassVar[Mapping[str, str]] = MEANINGS
    scope: ClassVar[str] = (
        "It hears all noisy answers, and looks at all that release.json and the draws hold; `confide verify` checks "
        "the same of the run itself."
    )

    def _course(self) -> str:
        return (
            f"The program of the run asked its {self.whole:,} questions of a made-up table, and each was asked again "
            f"{self.repetitions:,} times of tables with one record and without it (seed {self.seed}); no real record "
            "was read."
        )

    def _reach(self) -> str:
        found = self.smallest
        parts = [
            "noise, in any one release, below "
            f"{found['scores']:.3g} (sums of scores), {found['information']:.3g} (information) or {found['scale']:.3g} "
            f"(scale) of what was priced, or in any one number below {found['one noise']:.3g}",
            f"a record that moves a release by more than {found['clip']:.6g} times what was priced, in {self.seen:,} "
            "pairs of neighbours with rows of all lengths and outcomes",
            "any release that was not priced",
            "any published number that does not follow from the noisy answers, by what two executions publish",
        ]
        if "epsilon" in found:
            parts.append(f"a mechanism that reveals an epsilon of {found['epsilon']:.3g} or more")
        return f"In {POWER:.0%} of all cases this audit would have seen: {'; '.join(parts)}."

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"kind": "made-up scoring"}


def audit_scoring(
    posterior: Posterior,
    *,
    confidence: float,
    repetitions: int | None,
    deadline: float,
    seed: int,
    number: int = 1,
    report: Callable[[int, int], None] | None = None,
) -> MadeUpScoring:
    """Ask what a run of scoring asked of made-up tables, and test the answers against its claim."""
    guarantee, generator = posterior.guarantee, np.random.default_rng([seed, 1])
    assert guarantee is not None
    regression = isinstance(posterior.release, RegressionRelease)
    built = (regression_program if regression else scoring_tables).rebuild(posterior, seed, generator)
    published = _published(built, posterior, seed)
    with jax.enable_x64(True):
        told = gather(built, _repetitions(built, repetitions), seed, generator, deadline, report)
    claim = priced_claim(guarantee, None, 0)
    tests = scoring_tests.p_values(told, claim.points) | {"priced": float(not _unpriced(built, posterior))} | published
    smallest = scoring_tests.smallest(told, claim.points, (1 - confidence) * share(number) / len(MEANINGS), POWER)
    smallest["clip"] = told.room
    smallest |= smallest_epsilon(smallest, guarantee.delta)
    sides, sharing = (told.inside, told.outside), {"total": len(MEANINGS), "confidence": confidence, "number": number}
    return MadeUpScoring(
        **judge_pairs(guarantee, sides, claim, tests, **sharing),
        steps=len(built.releases),
        whole=len(built.releases),
        seed=seed,
        smallest=smallest,
        seen=sum(part.size for part in told.moved.values()),
        batches=False,
        run=posterior.plan.get("run", ""),
    )


def _repetitions(built: Program, given: int | None) -> int:
    if given is not None:
        if validation.count(repetitions=given) < FEWEST:
            raise Refused(f"repetitions = {given} show next to nothing: give {FEWEST} or more")
        return given
    each = built.crowd.places * built.size**2 + OVERHEAD
    return int(min(MOST, max(FEWEST, WORK / 3 / len(built.releases) / each)))


def gather(
    built: Program,
    planned: int,
    seed: int,
    generator: np.random.Generator,
    deadline: float,
    report: Callable[[int, int], None] | None,
) -> Told:
    """What is seen of `planned` repetitions, fewer where the deadline has passed."""
    rows, secure = built.rows, built.secure
    last = built.crowd.places - 1
    somewhere = int(generator.integers(last + 1))
    moved = _moved(built, rows, somewhere, source(seed, "moved", 0, secure))
    silent, inside = built.place({}), built.place({somewhere: rows["up"]})
    outside = built.place({somewhere: rows["down"]}) if built.neighbours == "replace-one" else silent
    known = [_difference(built, each, silent, source(seed, "known", 0, secure)) for each in (inside, outside)]
    kept = [generator.permutation(part.size)[:KEPT] for part in known[0]]
    quiet: list[list[np.ndarray]] = [[] for _ in built.releases]
    scores: tuple[list[float], list[float]] = ([], [])
    dependence: dict[str, float] = dict.fromkeys(KINDS, 0.0)
    done = 0
    while done < planned and (done < FEWEST or time.monotonic() < deadline):
        alike, others = (source(seed, label, done, secure) for label in ("alike", "others"))
        empty, one, other = (
            _answers(built, table, key) for table, key in ((silent, alike), (inside, alike), (outside, others))
        )
        for parts, chosen, answer in zip(quiet, kept, empty, strict=True):
            parts.append(answer[chosen])
        for release, with_record, without, moved_by in zip(built.releases, one, empty, known[0], strict=True):
            change = np.max(np.abs(with_record - without - moved_by)) / _rounding(release)
            dependence[release.kind] = max(dependence[release.kind], float(np.nan_to_num(change, nan=math.inf)))
        for side, answers in zip(scores, (one, other), strict=True):
            side.append(_score(answers, *known))
        done += 1
        if report is not None:
            report(done, planned)
    every = tuple(np.stack(parts) for parts in quiet)
    kinds = tuple(each.kind for each in built.releases)
    on_grid = [z.ravel() for kind, z in zip(kinds, every, strict=True) if kind != "scale"]
    on_grid = [z[: UNITS // len(on_grid)] for z in on_grid]
    return Told(
        kinds=kinds,
        quiet=every,
        units=np.concatenate(on_grid) * exact_rounding.GRID,
        moved=moved,
        dependence=dependence,
        room=max(_room(each.multiplier, part.size) for each, part in zip(built.releases, known[0], strict=True)),
        inside=_finite(scores[0]),
        outside=_finite(scores[1]),
    )


def _answers(built: Program, table: Placed, key: Any) -> list[np.ndarray]:
    """To every question, in units of the noise."""
    return [each.answer(table, key) for each in built.releases]


def _difference(built: Program, table: Placed, other: Placed, key: Any) -> list[np.ndarray]:
    """Of the answers, with the same noise."""
    both = zip(_answers(built, table, key), _answers(built, other, key), strict=True)
    return [one - two for one, two in both]


def _score(answers: list[np.ndarray], one: list[np.ndarray], other: list[np.ndarray]) -> float:
    """The log likelihood ratio of one record against the other, or none, where no others are there."""
    total = 0.0
    for answer, first, second in zip(answers, one, other, strict=True):
        total += float(answer @ (first - second) - (first @ first - second @ second) / 2)
    return total


def _rounding(release: scoring_tables.Release) -> float:
    """By how much rounding may change the noise, in units of it: counts are whole numbers, sums are on a fine grid."""
    return 1.0 / release.multiplier if release.kind == "scale" else ROUNDED_SUMS


def _finite(scores: list[float]) -> np.ndarray:
    huge = gathering.HUGE
    return np.nan_to_num(np.array(scores), nan=huge, posinf=huge, neginf=-huge)


def _moved(built: Program, rows: dict[str, Row], somewhere: int, key: Any) -> dict[str, np.ndarray]:
    """How far records move releases, over what was priced: alone, instead of each other, and among others."""
    last, silent = built.crowd.places - 1, built.place({})
    alone = [_difference(built, built.place({somewhere: row}), silent, key) for row in rows.values()]
    added = [*alone, *(_difference(built, built.place({place: rows["up"]}), silent, key) for place in (0, last))]
    crowd = built.place({}, crowd=True)
    added += [_difference(built, built.place({last: rows[name]}, crowd=True), crowd, key) for name in CROWDED]
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number, each in enumerate(built.releases):
        room = _room(each.multiplier, alone[0][number].size)
        lengths = [np.linalg.norm(moved[number]) for moved in added]
        replaced = [np.linalg.norm(one[number] - two[number]) for one, two in itertools.combinations(alone, 2)]
        ratios = each.multiplier / room * np.array([*lengths, *(length / each.change for length in replaced)])
        found[each.kind].extend(np.nan_to_num(ratios, nan=math.inf).tolist())
    return {kind: np.array(ratios) for kind, ratios in found.items()}


def _room(multiplier: float, numbers: int) -> float:
    """What a record may move a release by, with what rounding may add, over what was priced."""
    return 1 + ROUNDING + GRID * multiplier * math.sqrt(numbers)


def _published(built: Program, posterior: Posterior, seed: int) -> dict[str, float]:
    """Whether all that the program publishes of two tables follows from its noisy answers."""
    tables = (built.crowd, scoring_publication.second_table(built.crowd))
    keys = (source(seed, "published", number, built.secure) for number in range(2))
    executions = [scoring_publication.execute(built.job, *each) for each in zip(tables, keys, strict=True)]
    assert isinstance(posterior.release, Release | LinearRelease | RegressionRelease)
    return scoring_publication.p_values(built.job, executions, built.asking, posterior.release)


def _unpriced(built: Program, posterior: Posterior) -> bool:
    """Whether the program asks for more than was priced, or is planned for more, or the run stored more."""
    guarantee, release = posterior.guarantee, posterior.release
    assert guarantee is not None
    assert release is not None
    most = guarantee.event.parts(guarantee.neighbours).squared_mu * (1 + SAME)
    stored = built.stored(release.terms().multipliers)
    return max(built.heard, stored) > most or reveals_more(built.event, guarantee.event, guarantee.neighbours)
