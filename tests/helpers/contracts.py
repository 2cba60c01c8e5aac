"""The contract of every kernel: what it draws is what it prices, and what it knows of the records is noisy sums.

`measured` steps a kernel through the real oracle, real batches and real noise, and returns the noise that was really
added to every sum, over the clip. `keeps_its_promise` compares it with the event.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

import confide
from confide.inference import plans
from confide.inference.plans import Asked
from confide.mechanism import noise
from confide.mechanism.clipping import whole_chunks
from confide.mechanism.oracle import Oracle

SAMPLERS = {
    "sgld": confide.sgld(),
    "sgld decreasing": confide.sgld(schedule="decreasing"),
    "sgld cold": confide.sgld(temperature=0.5),
    "psgld": confide.psgld(),
    "sghmc": confide.sghmc(),
    "sghmc with batch noise": confide.sghmc(friction=0.3, batch_noise=0.1),
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


@dataclass(frozen=True, kw_only=True)
class Recording(Oracle):
    """The real oracle, keeping beside each noisy sum the sum without noise."""

    record: dict[str, list]

    def taken(self):
        rows = jnp.arange(whole_chunks(len(DATA[0]))) if self.rows is None else self.rows
        return self.gradient_sum.batch(self.data, self.reach, rows)

    def gradient(self, position, scale, factor=None):
        noisy = super().gradient(position, scale, factor)
        with jax.enable_x64(False):
            single = position.astype(jnp.float32)
            seen = None if factor is None else factor.astype(jnp.float32)
            clean = self.gradient_sum(single, self.taken(), seen).total
        jax.debug.callback(self.record["gradient"].append, noisy - clean.astype(jnp.float64))
        return noisy

    def fisher(self, position, scale):
        noisy = super().fisher(position, scale)
        with jax.enable_x64(False):
            rows = self.gradient_sum.contributions(position.astype(jnp.float32), self.taken())
            clean = rows.T @ rows
        jax.debug.callback(self.record["fisher"].append, noisy - clean.astype(jnp.float64))
        return noisy


def job_of(sampler, steps=8, batch_size=60, secure=False, budget=BUDGET, clip=0.5, chains=1):
    model = confide.models.logistic_regression(D)
    asked = Asked(steps=steps, batch_size=batch_size, clip=clip, chains=chains, secure=secure)
    return plans.private_job(model, DATA, budget, sampler, asked, jax.random.key(0))


def measured(job, seed=0):
    """Noise added to the gradient sums (steps, parameters) and to the Fisher sums, in units of what was priced."""
    record = {"gradient": [], "fisher": []}
    source = noise.SecureSource(b"s" * 32) if job.setting.secure else jax.random.key(seed)
    with jax.enable_x64(True):
        data = tuple(jnp.asarray(array) for array in DATA)
        reach = jax.jit(job.gradient_sum.reach)(data)
        random = job.randomness(source, 0)
        rows, units, fisher, key, _ = jax.jit(job._drawn)(random, jnp.asarray(0))
        state = job.kernel.init(jnp.asarray(job.starts[0]))

        @jax.jit
        def step(t, state, controls, rows, units, fisher, key):
            oracle = Recording(
                gradient_sum=job.gradient_sum,
                data=data,
                reach=reach,
                rows=None if rows is None else rows[t],
                units=units[t],
                fisher_units=None if fisher is None else fisher[t],
                key=jax.random.fold_in(key, t),
                secure=job.setting.secure,
                record=record,
            )
            return job.kernel.step(state, jax.tree.map(lambda column: column[t], controls), t, oracle)

        controls = jax.tree.map(jnp.asarray, job.kernel.controls)
        for t in range(job.steps):
            state = step(jnp.asarray(t), state, controls, rows, units, fisher, key)
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
    clip = job.setting.clip
    asked = job.kernel.controls.fisher_noise[: job.steps] > 0
    told = job.kernel.controls.noise / clip
    joint = told.copy()
    if fisher:
        off = np.triu_indices(job.setting.dimension, 1)
        told_fisher = job.kernel.controls.fisher_noise[: len(fisher)] / clip**2
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
