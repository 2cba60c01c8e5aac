"""Do intervals that are made of the trace of a run hold the truth, and how much wider than need be are they?

    python benchmarks/traces.py --family logistic --epsilon 0.5,2 --n 2000 --d 3 --datasets 100
    python benchmarks/traces.py --family poisson --epsilon 4 --sampler dpvi

Models by functions, with a declared bound of gradients, as `Posterior.noise_aware` asks for. Truths are drawn from the
prior, the first column is 1, others are uniform on [-1, 1]. A row is one epsilon, with standard errors by dataset:

- coverage of central 90% intervals of `noise_aware`, and of the run's own draws;
- width and error over those of an ideal that knows the curvature of these records at the truth, and the noise.
"""

import argparse

import jax.numpy as jnp
import numpy as np

import confide

COUNTS = 12.0  # a bound of |y - mean| that counts under this prior hardly ever reach


def built(family, d):
    """The model, and the precision of its prior."""
    precision = 1.0 if family == "logistic" else 4.0
    model = confide.models.from_functions(
        log_prior=lambda theta: -0.5 * precision * jnp.sum(theta**2),
        log_likelihood=lambda theta, x, y: (
            y * (x @ theta) - (jnp.logaddexp(0.0, x @ theta) if family == "logistic" else jnp.exp(x @ theta))
        ),
        start=jnp.zeros(d),
        gradient_bound=(1.0 if family == "logistic" else COUNTS) * d**0.5,
    )
    return model, precision


def simulated(family, n, d, precision, rng):
    """Records, the truth behind them, and their information there."""
    truth = rng.normal(size=d) / precision**0.5
    x = np.column_stack([np.ones(n), rng.uniform(-1, 1, (n, d - 1))]).astype(np.float32)
    scores = x @ truth
    mean = np.exp(scores) / (1 + np.exp(scores)) if family == "logistic" else np.exp(scores)
    y = rng.random(n) < mean if family == "logistic" else rng.poisson(mean)
    variance = mean * (1 - mean) if family == "logistic" else mean
    return (x, y.astype(np.float32)), truth, (x * variance[:, None]).T @ x


def ideal(trace, information, precision):
    """Standard deviations where the curvature is known."""
    eye, q, steps = np.eye(len(information)), trace.sampling_probability, trace.lengths.sum()
    weight = trace.moments[..., 0, 0].sum() / len(trace.moments)
    spread = (steps / weight * eye + (1 - q) / q * information) / (steps * len(trace.moments))
    known = information @ np.linalg.inv(information + spread) @ information
    return np.sqrt(np.diag(np.linalg.inv(precision * eye + known)))


def measured(given, epsilon):
    model, precision = built(given.family, given.d)
    rng, rows = np.random.default_rng(given.seed), []
    for index in range(given.datasets):
        data, truth, information = simulated(given.family, given.n, given.d, precision, rng)
        budget, sampler = confide.Budget(epsilon=epsilon, delta=1e-5), getattr(confide, given.sampler)()
        asked = {"steps": given.steps, "key": index, "verbose": False, "progress": False}
        run = confide.fit(model, data, budget=budget, sampler=sampler, **asked)
        aware = np.asarray(run.noise_aware(1000, key=index).draws)[0]
        low, high = np.quantile(aware, [0.05, 0.95], axis=0)
        own = np.quantile(np.asarray(run.draws), [0.05, 0.95], axis=(0, 1))
        sd = ideal(run.trace, information, precision)
        inside, plain = (low < truth) & (truth < high), (own[0] < truth) & (truth < own[1])
        rows.append((inside, plain, (high - low) / 3.29 / sd, np.abs(aware.mean(axis=0) - truth), sd))
    inside, plain, width, error, sd = (np.array(column) for column in zip(*rows, strict=True))
    clustered = inside.mean(axis=1).std() / len(rows) ** 0.5
    print(
        f"{given.family} {given.sampler} d={given.d} n={given.n} epsilon={epsilon:g}: coverage {inside.mean():.3f} +- "
        f"{clustered:.3f} (own draws {plain.mean():.3f}), width {np.median(width):.2f}, error "
        f"{error.mean() / (0.798 * sd.mean()):.2f} of the ideal's, {len(rows)} datasets",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=["logistic", "poisson"], default="logistic")
    parser.add_argument("--sampler", default="sgld")
    parser.add_argument("--epsilon", default="0.5,2")
    for name, default in {"n": 2000, "d": 3, "steps": 1000, "datasets": 100, "seed": 11}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    for epsilon in given.epsilon.split(","):
        measured(given, float(epsilon))


if __name__ == "__main__":
    main()
