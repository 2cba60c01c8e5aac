"""Speed and memory of private scoring, against a bare pass of JAX over the same rows with the same arithmetic.

    python benchmarks/scoring.py [--repeat 30]

- a fit from arrays to draws, of n = 32,561 rows with d = 109 and of n = 500 with d = 20, after compilation;
- one pass for a noisy sum of bounded scores, over a hand-written pass in chunks of the same rows: rows through the
  root, their norms, weighted residuals, a cut, the sum in double precision. Both interleaved; medians;
- what the compiled program holds beside its arguments, by XLA's own account, for growing n and d.
"""

import argparse
import math
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

import confide
from confide.inference import frames
from confide.inference import questions as asked_of
from confide.inference.questions import NOTHING_TOLD, Question, compile_questions
from confide.mechanism import noise
from confide.mechanism.clipping import CHUNK
from confide.mechanism.scale import REACH, Scale
from confide.models.families import Logistic
from confide.models.inputs import Records
from confide.models.model import from_family

KEY = noise.as_key(0)


def table(n, d, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, d)).astype(np.float32)
    y = (rng.random(n) < 1 / (1 + np.exp(-x @ rng.normal(size=d) / math.sqrt(d)))).astype(np.float32)
    return x, y


def prepared(n, d):
    """The question of a step, as a run asks it, and the table on the device."""
    x, y = table(n, d)
    model = from_family(Logistic(), d)
    here = frames.frame(Logistic(), n, (d, d), None, (1.0, False), Scale(math.sqrt(d / 3), 1.0), 0.3)
    records = Records((x, y), np.ones(n, bool), n)
    questions = compile_questions(model, lambda flat: flat, here, d, noise.SUMS, records)
    root = np.eye(d) / here.clip
    question = Question("noise", 0, np.linspace(-0.5, 0.5, d), root, 1.0, 3.0)
    return questions, questions.prepare(records, records), question, here


def bare(here):
    """The same sum as one would write it by hand, without a guarantee: no noise, no rounding, no buffers that make what
    is measured what is summed, and no empty places."""
    row_bound = REACH * here.norm / here.clip

    def length(rows):  # of any size
        largest = jnp.maximum(jnp.max(jnp.abs(rows), axis=1), 1e-30)
        return largest * jnp.sqrt(jnp.sum(jnp.square(rows / largest[:, None]), axis=1))

    @jax.jit
    def total(x, y, position, root):
        places = x.shape[0] // CHUNK

        def chunk(index, so_far):
            rows = jax.lax.dynamic_slice_in_dim(x, index * CHUNK, CHUNK)
            labels = jax.lax.dynamic_slice_in_dim(y, index * CHUNK, CHUNK)
            p = jax.nn.sigmoid(rows @ position)
            seen = rows @ root
            norms = length(seen)
            weight = jnp.minimum(1.0, 1.0 / (jnp.maximum(p, 1 - p) * norms))
            weight = weight * jnp.minimum(1.0, (row_bound / norms) ** 2)
            score = seen * (weight * (p - labels))[:, None]
            finite = jnp.all(jnp.isfinite(score), axis=1)
            score = jnp.where(finite[:, None], score, 0.0) * jnp.minimum(1.0, 1 / length(score))[:, None]
            return so_far + jnp.sum(score.astype(jnp.float64), axis=0)

        return jax.lax.fori_loop(0, places, chunk, jnp.zeros(x.shape[1], jnp.float64))

    return total


def passes(n, d, repeat):
    with jax.enable_x64(True):
        questions, on_device, question, here = prepared(n, d)
        run = bare(here)
        x, y = on_device.whole.data
        position = jnp.asarray(question.position, jnp.float32)
        root = jnp.asarray(question.root, jnp.float32)
        query = asked_of.Query(
            jnp.asarray(question.position), jnp.asarray(question.deviation), jnp.asarray(question.root)
        )
        units = noise.draw_units(KEY, 0, 0, (d,), "noise")
        told = jnp.asarray(NOTHING_TOLD)

        def own():
            return questions.score(on_device.whole, query, units, told)[0].block_until_ready()

        def other():
            return run(x, y, position, root).block_until_ready()

        times = {"confide": [], "bare": []}
        for name, each in (("confide", own), ("bare", other)) * (repeat + 2):
            start = time.perf_counter()
            each()
            times[name].append(time.perf_counter() - start)
        ours, theirs = (statistics.median(times[name][2:]) for name in ("confide", "bare"))
    print(f"a pass, n = {n:,}, d = {d}: {1e3 * ours:.2f} ms, bare {1e3 * theirs:.2f} ms, ratio {ours / theirs:.3f}")


def memory():
    print("held beside the data by the program of one sum, and of one information (MB):")
    for n, d in ((10_000, 20), (100_000, 20), (1_000_000, 20), (32_561, 109), (100_000, 500)):
        with jax.enable_x64(True):
            questions, on_device, question, _ = prepared(n, d)
            query = asked_of.Query(*map(jnp.asarray, (question.position, question.deviation, question.root)))
            units = jnp.zeros(d)
            lowered = jax.jit(questions.score).lower(on_device.whole, query, units, jnp.asarray(NOTHING_TOLD))
            held = lowered.compile().memory_analysis().temp_size_in_bytes
            matrix = asked_of.InformationQuery(query.position, query.preconditioner_root, jnp.asarray(1.0), query.scale)
            upper = jnp.zeros(d * (d + 1) // 2)
            lowered = jax.jit(questions.information).lower(on_device.records, matrix, upper)
            second = lowered.compile().memory_analysis().temp_size_in_bytes
        usual = 8 * (d**2 + CHUNK * d)
        print(
            f"  n = {n:>9,}, d = {d:>3}: {held / 1e6:8.2f} {second / 1e6:8.2f}; "
            f"d^2 + chunk x d in double precision {usual / 1e6:.2f}"
        )


def fits(n, d):
    x, y = table(n, d)
    model, budget = confide.models.logistic_regression(d), confide.Budget(epsilon=1.0, delta=1e-6)
    times = []
    for key in range(4):
        start = time.perf_counter()
        confide.fit(model, (x, y), budget, key=key, verbose=False, progress=False)
        times.append(time.perf_counter() - start)
    print(
        f"a fit, n = {n:,}, d = {d}: {statistics.median(times[1:]):.2f} s after compilation, {times[0]:.1f} s with it"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=30)
    given = parser.parse_args()
    fits(32_561, 109)
    fits(500, 20)
    passes(32_768, 109, given.repeat)
    passes(262_144, 20, given.repeat)
    memory()


if __name__ == "__main__":
    main()
