"""The contract of every kernel: what it draws is what it prices, and what it knows of the records is noisy sums.

`measured` steps a kernel through the real oracle, real batches and real noise, and returns the noise that was really
added to every sum, over the clip. `keeps_its_promise` compares it with the event.
"""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

import confide
from confide.inference import plans
from confide.inference.options import Options
from confide.mechanism import noise, oracle
from confide.mechanism.clipping import whole_chunks
from confide.mechanism.layers import Observed
from confide.mechanism.oracle import in_single

SAMPLERS = {
    "sgld": confide.sgld(),
    "sgld decreasing": confide.sgld(schedule="decreasing"),
    "sgld cold": confide.sgld(temperature=0.5),
    "psgld": confide.psgld(),
    "sghmc": confide.sghmc(),
    "sghmc with batch noise": confide.sghmc(friction=0.3, batch_noise=0.1),
    "baoab": confide.baoab(),
    "sgnht": confide.sgnht(),
    "sgfs": confide.sgfs(adapt=4),
    "wang2015_sgld": confide.wang2015_sgld(),
    "dp_sgd": confide.dp_sgd(momentum=0.5),
    "dp_sgd in part": confide.dp_sgd(updated=0.4),
    "dp_adam": confide.dp_adam(),
    "dpvi": confide.dpvi(),
}
BUDGET = confide.Budget(epsilon=1.0, delta=1e-5)
D = 8
DATA = (
    np.random.default_rng(0).normal(size=(300, D)).astype(np.float32),
    np.random.default_rng(1).integers(0, 2, 300).astype(np.float32),
)


def job_of(sampler, secure=False, budget=BUDGET, **settings):
    model = confide.models.logistic_regression(D)
    settings = {"steps": 8, "batch_size": 60, "clip": 0.5, "noise": "secure" if secure else "default", **settings}
    asked = Options(**settings)
    return plans.private_job(model, DATA, budget, sampler, asked, jax.random.key(0))


def recording(asked, sums, prepared, record):
    """The oracle, keeping beside each noisy sum the sum without noise."""

    def taken(draw):
        rows = jnp.arange(whole_chunks(len(DATA[0]))) if draw.rows is None else draw.rows
        return sums.batch(prepared.data, prepared.residual_threshold, rows)

    def gradient(query, draw, observed):
        noisy, observed = asked.gradient(query, draw, observed)
        with jax.enable_x64(False):
            query = in_single(query)
            clean = sums(query.position, taken(draw), query.preconditioner_root).total
        jax.debug.callback(record["gradient"].append, noisy - clean.astype(jnp.float64))
        return noisy, observed

    def fisher(query, draw):
        noisy = asked.fisher(query, draw)
        with jax.enable_x64(False):
            rows = sums.contributions(query.position.astype(jnp.float32), taken(draw))
            clean = rows.T @ rows
        jax.debug.callback(record["fisher"].append, noisy - clean.astype(jnp.float64))
        return noisy

    return asked._replace(gradient=gradient, fisher=fisher)


def measured(job, seed=0):
    """Noise added to the gradient sums (steps, parameters) and to the Fisher sums, in units of what was priced."""
    record = {"gradient": [], "fisher": []}
    source = noise.SecureSource(b"s" * 32) if job.parameters.secure else jax.random.key(seed)
    with jax.enable_x64(True):
        prepared = job.prepared(tuple(jnp.asarray(array) for array in DATA))
        asked = oracle.build(job.gradient_sum, job.parameters.rounding, job.observers, prepared)
        asked = recording(asked, job.gradient_sum, prepared, record)
        drawn = jax.jit(job._drawn)(job.randomness(source, 0), jnp.asarray(0))
        state = job.kernel.init(jnp.asarray(job.initial_positions[0]))

        @jax.jit
        def step(t, state, schedule, drawn):
            control = jax.tree.map(lambda column: column[t], schedule)
            return oracle.step(job.kernel, asked, state, control, drawn.of(t, t, control.noise), Observed())[0]

        schedule = jax.tree.map(jnp.asarray, job.kernel.schedule)
        for t in range(job.steps):
            state = step(jnp.asarray(t), state, schedule, drawn)
            jax.block_until_ready(state)
            jax.effects_barrier()  # the record is in the order of the steps
    assert len(record["gradient"]) == job.steps
    return np.stack(record["gradient"]), [np.asarray(value) for value in record["fisher"]]


def keeps_its_promise(job, event) -> bool:
    """Whether the noise really drawn has the priced multipliers: two-sided chi-square, wrong once in 1e8 by chance.

    Where a step releases two sums, their multipliers join as 1/sigma^2 = 1/sigma_g^2 + 1/sigma_F^2.
    """
    parts = event.parts("add-remove")
    priced = np.repeat(parts.noise_multipliers, parts.counts.astype(int))
    if not priced.size:  # full batches
        priced = np.full(job.steps, np.sqrt(job.steps / parts.squared_mu))
    gradient, fisher = measured(job)
    clip = job.parameters.clip
    asked = job.kernel.schedule.fisher_noise[: job.steps] > 0
    told = job.kernel.schedule.noise / clip
    joint = told.copy()
    if fisher:
        off = np.triu_indices(job.parameters.dimension, 1)
        told_fisher = job.kernel.schedule.fisher_noise[: len(fisher)] / clip**2
        scaled = np.stack([f[off] * np.sqrt(2) / clip**2 for f in fisher]) / told_fisher[:, None]
        if not _unit(scaled):
            return False
        joint[asked] = 1 / np.sqrt(1 / told[asked] ** 2 + 1 / told_fisher[: asked.sum()] ** 2)
    matches = np.allclose(np.sort(joint), np.sort(priced), rtol=1e-4)
    return bool(matches and _unit(gradient / clip / told[:, None]))


def _unit(values) -> bool:
    """Whether the values are standard normal as far as their squares tell."""
    total, size = float(np.sum(values**2)), values.size
    return min(stats.chi2.sf(total, size), stats.chi2.cdf(total, size)) > 5e-9
