"""Does `confide.sample` find the posterior that NumPyro's NUTS finds? Adult, logistic regression, prior N(0, 1).

    CONFIDE_DATA=... python benchmarks/nuts.py

Fisher scoring on full batches against NUTS on the same density; takes several minutes. Bars: marginal means within
0.1 posterior standard deviations, standard deviations within 10%.
"""

import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS

import confide

REGULARISATION, RELAXATION, STEPS, WARM_UP = 0.003, 0.1, 30_000, 2_000


def nuts(x, y):
    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    sampler = MCMC(NUTS(model, dense_mass=True), num_warmup=600, num_samples=2000, progress_bar=False)
    sampler.run(jax.random.key(0), jnp.asarray(x), jnp.asarray(y))
    return np.asarray(sampler.get_samples()["w"], np.float64)[None]


def step_size(x, y):
    """The step that relaxes every direction by RELAXATION: sgfs divides its metric by the mean eigenvalue."""
    w = np.zeros(x.shape[1])
    for _ in range(20):
        p = 1 / (1 + np.exp(-x @ w))
        curvature = x.T @ (x * (p * (1 - p))[:, None]) + np.eye(w.size)
        w -= np.linalg.solve(curvature, x.T @ (p - y) + w)
    eigenvalues = np.maximum(np.linalg.eigvalsh(x.T @ (x * ((p - y) ** 2)[:, None]) / len(x)), 0)
    return RELAXATION * np.mean(1 / (eigenvalues + REGULARISATION * eigenvalues.mean()))


def ours(x, y):
    sampler = confide.sgfs(step_size(x.astype(np.float64), y), adapt=500, regularisation=REGULARISATION)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", confide.NotPrivateWarning)
        found = confide.sample(
            confide.models.logistic_regression(x.shape[1]),
            (x, y),
            sampler,
            steps=STEPS,
            burn_in=WARM_UP,
            draws=STEPS - WARM_UP,
            batch_size=len(x),
            chains=4,
            key=0,
        )
    return np.asarray(found.draws["weights"], np.float64)


def main():
    split = confide.data.adult()
    results = {}
    for name, go in {"confide.sample": ours, "NUTS": nuts}.items():
        start = time.perf_counter()
        draws = go(split.x, split.y)
        smallest = min(effective_sample_size(draws[:, :, j : j + 1])[0] for j in range(draws.shape[2]))
        print(f"{name}: {time.perf_counter() - start:.0f} s, smallest effective sample size {smallest:.0f}", flush=True)
        results[name] = draws.mean(axis=(0, 1)), draws.std(axis=(0, 1))
    (mean, sd), (true_mean, true_sd) = results["confide.sample"], results["NUTS"]
    off, ratio = np.abs(mean - true_mean) / true_sd, sd / true_sd
    print(f"means: at most {off.max():.3f} sd apart, {off.mean():.3f} on average (bar 0.1)")
    print(f"sds: ratio {ratio.min():.3f} to {ratio.max():.3f} (bar 0.9 to 1.1)")
    if off.max() > 0.1 or not 0.9 <= ratio.min() <= ratio.max() <= 1.1:
        raise SystemExit("a bar was missed")


if __name__ == "__main__":
    main()
