"""Ways to break a program that its own description does not show, for audits to find."""

import hashlib
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from confide.inference.linear.asking import LinearQuestions
from confide.inference.linear.job import LinearScoringJob
from confide.inference.loop import Job
from confide.inference.plans import scoring as plans
from confide.inference.questions import Question, Questions
from confide.inference.scoring_job import ScoringJob
from confide.mechanism import batches, information, linear_sums, noise, per_example
from confide.mechanism.clipping import GLM, ClippedSum, MultinomialGLM
from confide.mechanism.linear_scale import LinearScaleRelease
from confide.mechanism.per_example import column
from confide.mechanism.scale import ScaleRelease
from confide.models.inputs import as_records
from confide.privacy import events
from confide.privacy.events import base


def no_noise(patch, own: int = 5) -> None:
    """On the model's own parameters; those of canaries have all of it."""
    honest = noise.add_noise
    patch.setattr(noise, "add_noise", lambda total, scale, units: honest(total, scale, units.at[:own].set(0)))


def half_the_noise(patch) -> None:
    less_noise(patch, 0.5)


def less_noise(patch, factor: float) -> None:
    honest, join = noise.add_noise, noise.around_steps
    patch.setattr(noise, "add_noise", lambda total, scale, units: honest(total, factor * scale, units))

    def joined(total, deviation, source):
        return total * (deviation / noise.GRID) + join(np.zeros_like(total), factor * deviation, source)

    patch.setattr(noise, "around_steps", joined)


def half_the_noise_of(patch, kind: str, number: int | None = None) -> None:
    """Of the sums of private scoring ("noise") or of its matrices ("information"): of one of them, or of all."""
    for asker in (Questions, LinearQuestions):

        def ask(self, table, question, *given, honest=asker.ask):
            if question.kind == kind and number in (None, question.number):
                question = question._replace(deviation=question.deviation / 2)
            return honest(self, table, question, *given)

        patch.setattr(asker, "ask", ask)


def uncut_information(patch) -> None:
    """The matrices of far rows are neither weighted down nor cut."""

    def halves(sums, family, position, root, bound, batch):
        glm = sums.per_example
        inputs, scores = glm.scores(position, batch)
        rows = inputs @ root
        limit, _, typical = glm.weighting(sums.limit)
        threshold = limit / jnp.maximum(per_example.row_norms(rows), per_example.TINY)
        weight = jnp.where(batch.real, family.information_weight(scores, threshold, typical), 0.0)
        return rows * jnp.sqrt(weight)[:, None]

    patch.setattr(information, "halves", halves)
    patch.setattr(linear_sums, "bound_halves", lambda z, root, cuts, bound: np.clip(z @ root, -1e3, 1e3))


def outcomes_count_twice(patch) -> None:
    """Of a linear model that learns its noise scale."""
    honest = LinearScaleRelease.count_outcomes
    patch.setattr(
        LinearScaleRelease, "count_outcomes", lambda self, given, source: honest(self, np.tile(given, 2), source)
    )


def scale_counts_twice(patch) -> None:
    honest = ScaleRelease.count_norms
    patch.setattr(ScaleRelease, "count_norms", lambda self, octaves, source: honest(self, np.tile(octaves, 2), source))


def half_the_noise_of_the_scale(patch) -> None:
    patch.setattr(ScaleRelease, "drawn", property(lambda self: self.noise / 2))


def less_noise_of_records(patch) -> None:
    """A histogram of the norms of records has half the noise; one of no records has all of it."""
    honest = ScaleRelease.count_norms

    def count_norms(self, octaves, source):
        empty = honest(self, octaves[:0], source)
        return honest(self, octaves, source) - np.rint(0.5 * empty) if len(octaves) else empty

    patch.setattr(ScaleRelease, "count_norms", count_norms)


def one_sum_more(patch) -> None:
    """Private scoring asks its last question once more, with other noise."""
    for job, extra in ((ScoringJob, 0), (LinearScoringJob, 1)):

        def ask(self, questions, table, key, *given, honest=job.ask, extra=extra):
            found = honest(self, questions, table, key, *given)
            bound = self.cuts.bound if extra else 1.0
            root, end = np.eye(self.size) / questions.frame.norm, np.ones(self.size + extra)
            question = Question("noise", self.steps, end, root, bound, bound * self.multipliers[-1])
            questions.ask(table, question, key)
            return found

        patch.setattr(job, "ask", ask)


def _published(patch, change) -> None:
    """What a run of scoring publishes is changed by its records, after all was asked."""
    for job in (ScoringJob, LinearScoringJob):

        def execute(self, data, key, *, honest=job.execute, **more):
            honest(self, data, key, **more)
            records = as_records(data)
            self.release = replace(self.release, **change(self.release, records.arrays[0][records.present]))
            drawn = self.release.make(self.draws, self.log_prior)
            if drawn.noise_scales is not None:
                self.noise_scales = drawn.noise_scales
            return drawn.parameters

        patch.setattr(job, "execute", execute)


def exact_sum_in_positions(patch) -> None:
    """The exact sum of a column is written into the place where the first sum was asked for."""

    def change(release, rows):
        name = "places" if hasattr(release, "places") else "positions"
        positions = getattr(release, name).copy()
        positions[0, 0] = float(np.sum(rows[:, 0], dtype=np.float64))
        return {name: positions}

    _published(patch, change)


def exact_counts(patch) -> None:
    """The number of records is published in the place of a noisy count."""

    def change(release, rows):
        norms = release.answers.norms.copy()
        norms[0] = len(rows)
        return {"answers": release.answers._replace(norms=norms)}

    _published(patch, change)


def exact_option(patch) -> None:
    """The scale of the prior is published as the length of the longest row."""
    _published(patch, lambda release, rows: {"prior_scale": float(np.max(np.linalg.norm(rows, axis=1)))})


def exact_norm(patch) -> None:
    """The usual norm of the records themselves is used in the place of the one that noisy counts give."""
    ask, read, norms = ScaleRelease.ask, ScaleRelease.read, []

    def remember(self, records, source):
        norms.append(float(np.mean(np.linalg.norm(records.arrays[0][records.present], axis=1))))
        return ask(self, records, source)

    patch.setattr(ScaleRelease, "ask", remember)
    patch.setattr(ScaleRelease, "read", lambda self, *given: read(self, *given)._replace(norm=norms[-1]))


def unpriced(patch, kind: type) -> None:
    """What private scoring releases of this kind is left out of its event; of sums of scores, the last one."""
    honest = events.compose

    def compose(*parts, **more):
        kept = [part for part in parts if not isinstance(part, kind)]
        if kind is events.GaussianSchedule:
            kept += [events.gaussian(np.array(part.noise_multipliers)[:-1]) for part in parts if isinstance(part, kind)]
        return honest(*kept, **more)

    patch.setattr(plans.events, "compose", compose)


def one_parameter(patch) -> None:
    """One of them has a tenth less noise."""
    honest = noise.add_noise

    def added(total, scale, units):
        return honest(total, scale, units.at[1].set(jnp.round(0.9 * units[1])))

    patch.setattr(noise, "add_noise", added)


def unclipped(patch, factor: float = 100.0) -> None:
    """Records are not cut, and count a hundred times."""
    honest = GLM.cut_and_sum

    def threshold(self, data, present=None, norm=None):
        return None if present is None else jnp.where(present, jnp.finfo(jnp.float32).max, 0.0)

    patch.setattr(ClippedSum, "residual_threshold", threshold)

    def summed(self, inputs, residual, batch, limit):
        found = honest(self, inputs, residual, batch, limit)
        return found._replace(total=factor * found.total)

    patch.setattr(GLM, "cut_and_sum", summed)


def no_weights(patch) -> None:
    """Scores are neither weighted nor cut: a record contributes its whole gradient."""

    def plain(self, scores, batch, threshold, limit):
        return self.linear.residual(scores, batch.arrays[1])

    patch.setattr(GLM, "shorten", plain)
    for kind in (GLM, MultinomialGLM):
        patch.setattr(kind, "cut", lambda self, residual, threshold: residual)
    patch.setattr(per_example, "most", lambda batch, limit: jnp.finfo(jnp.float32).max)  # through a root, and secure

    def whole(z, y, place, cuts):
        away = (y - z @ place.coefficients) / place.scale
        return np.clip(np.column_stack([away[:, None] * (z @ place.root), cuts.factor * away**2]), -1e6, 1e6)

    patch.setattr(linear_sums, "bound_scores", whole)
    patch.setattr(linear_sums, "cut_lengths", lambda rows, bound: rows)


def far_rows_count_more(patch, factor: float = 2.0) -> None:
    """Rows beyond the bound count so many times, and not less: the one weight that stands behind the cut."""
    honest = GLM.cut_and_sum

    def summed(self, inputs, residual, batch, limit):
        found = honest(self, inputs, residual, batch, limit)
        if self.linear.weighting is None or batch.residual_threshold is None:
            return found
        beyond = 1 / (batch.residual_threshold * self.weighting(limit)[1])
        again = batch._replace(real=batch.real & (beyond > 1))
        more = honest(self, inputs, residual * column(jnp.square(beyond), residual), again, limit)
        return found._replace(total=found.total + factor * more.total)

    patch.setattr(GLM, "cut_and_sum", summed)


def shuffled(patch) -> None:
    """Batches of fixed size, each record once in every pass over the data."""

    honest = Job._drawn

    def drawn(self, random, number):
        found, n = honest(self, random, number), self.parameters.rows
        (steps, size), batch = found.rows.shape, round(n * self.parameters.sampling_probability)
        passes = -(-steps * batch // n)
        orders = jax.vmap(lambda key: jax.random.permutation(key, n))(jax.random.split(found.key, passes))
        rows = orders.reshape(-1)[: steps * batch].reshape(steps, batch)
        empty = jnp.full((steps, size - batch), n)
        return found._replace(rows=jnp.concatenate([jnp.sort(rows, axis=1), empty], axis=1).astype(jnp.int32))

    patch.setattr(Job, "_drawn", drawn)


def always_in(patch, place: int, instead: bool = False) -> None:
    """One record is in every batch, beside the others or instead of the first of them."""
    honest = batches.from_gaps

    def drawn(gaps, n):
        rows = honest(gaps, n)
        steps, size = rows.shape
        there = jnp.any(rows == place, axis=1)
        at = jnp.zeros(steps, jnp.int32) if instead else jnp.minimum(jnp.sum(rows < n, axis=1), size - 1)
        put = rows.at[jnp.arange(steps), at].set(place)
        return jnp.sort(jnp.where(there[:, None], rows, put), axis=1)

    patch.setattr(batches, "from_gaps", drawn)


def missing_two(patch) -> None:
    """Replacing a record is priced as adding one."""
    patch.setitem(base.SENSITIVITY, "replace-one", 1.0)


def uniform_noise(patch) -> None:
    """Of the same variance."""
    honest = noise.add_noise

    def added(total, scale, units):
        flat = math.sqrt(12) * (jax.scipy.special.ndtr(units / noise.GRID) - 0.5)
        return honest(total, scale, jnp.round(flat * noise.GRID))

    patch.setattr(noise, "add_noise", added)


def off_the_grid(patch) -> None:
    """Nothing is rounded, as where noise is added in floating point."""
    add, join = noise.add_noise, noise.around_steps
    patch.setattr(noise, "add_noise", lambda total, scale, units: add(total, scale, units) + scale * 2.0**-28)
    patch.setattr(noise, "around_steps", lambda total, scale, source: join(total, scale, source) + scale * 2.0**-28)


def _units(patch, change) -> None:
    """change(units of a block, chain, block, those of another (chain, block))"""
    honest = noise.draw_units

    def drawn(source, chain, block, shape, *more, **named):
        if len(shape) != 2:
            return honest(source, chain, block, shape, *more, **named)
        return change(chain, block, lambda chain, block: honest(source, chain, block, shape, *more, **named))

    patch.setattr(noise, "draw_units", drawn)


def one_step(patch, step: int, factor: float) -> None:
    """The noise of one step is multiplied by a factor."""

    def change(chain, block, drawn):
        units = drawn(chain, block)
        there = block * len(units) + jnp.arange(len(units)) == step
        return jnp.where(there[:, None], jnp.round(factor * units), units)

    _units(patch, change)


def shifted_stream(patch) -> None:
    """Every step takes one number from the stream, and what the steps before it had."""

    def change(chain, block, drawn):
        units = drawn(chain, block)
        steps, parameters = units.shape
        return units.reshape(-1)[jnp.arange(steps)[:, None] + jnp.arange(parameters)]

    _units(patch, change)


def lagging_chains(patch) -> None:
    """A chain has the noise of the first one, so many steps later."""
    _units(patch, lambda chain, block, drawn: jnp.roll(drawn(0, block), chain, axis=0))


def equal_blocks(patch) -> None:
    """All blocks of steps have the noise of the first one."""
    _units(patch, lambda chain, block, drawn: drawn(chain, 0))


def short_keys(patch, number: int) -> None:
    """There are so many keys, and no more."""
    honest = noise.draw_units

    def drawn(source, chain, block, shape, *more, **named):
        if not isinstance(source, jax.Array):
            return honest(source, chain, block, shape, *more, **named)
        words = np.asarray(jax.random.key_data(source)).tobytes()
        word = int.from_bytes(hashlib.sha256(words).digest()[:8], "little") % number
        return honest(noise.as_key(word), chain, block, shape, *more, **named)

    patch.setattr(noise, "draw_units", drawn)


def _again(patch, hit, factor: float) -> None:
    honest = GLM.cut_and_sum

    def summed(self, inputs, residual, batch, limit):
        found = honest(self, inputs, residual, batch, limit)
        there = hit(batch)
        if there is None:
            return found
        more = honest(self, inputs, residual, batch._replace(real=batch.real & there), limit)
        return found._replace(total=found.total + (factor - 1) * more.total)

    patch.setattr(GLM, "cut_and_sum", summed)


def divided_by_the_batch(patch, expected: float) -> None:
    """Sums are divided by the realised size of the batch and multiplied by the expected one."""
    honest = GLM.cut_and_sum

    def summed(self, inputs, residual, batch, limit):
        result = honest(self, inputs, residual, batch, limit)
        return result._replace(total=result.total * expected / jnp.maximum(jnp.sum(batch.real), 1))

    patch.setattr(GLM, "cut_and_sum", summed)


def counts_more(patch, place: int, factor: float) -> None:
    """The record at one place counts so many times."""
    _again(patch, lambda batch: None if batch.places is None else batch.places == place, factor)


def label_counts_twice(patch, label: int) -> None:
    _again(patch, lambda batch: batch.arrays[-1] == label, 2.0)


__all__ = [
    "always_in",
    "counts_more",
    "divided_by_the_batch",
    "equal_blocks",
    "far_rows_count_more",
    "half_the_noise",
    "half_the_noise_of",
    "half_the_noise_of_the_scale",
    "label_counts_twice",
    "lagging_chains",
    "less_noise",
    "missing_two",
    "no_noise",
    "no_weights",
    "off_the_grid",
    "one_parameter",
    "one_step",
    "one_sum_more",
    "outcomes_count_twice",
    "scale_counts_twice",
    "shifted_stream",
    "short_keys",
    "shuffled",
    "unclipped",
    "uncut_information",
    "uniform_noise",
    "unpriced",
]
