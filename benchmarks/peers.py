"""Private steps of other libraries on the work of benchmarks/learning.py; prints JSON: name -> seconds per step.

Run by the interpreter of an environment that has torch and opacus, or jax-privacy; what is missing is left out.
"""

import importlib.util
import json
import time
import warnings

import numpy as np

warnings.simplefilter("ignore")
N, D, BATCH = 32_561, 109, 256
rng = np.random.default_rng(0)
X = rng.normal(size=(N, D)).astype(np.float32)
Y = (rng.random(N) < 1 / (1 + np.exp(-X[:, 0]))).astype(np.float32)


def best(go, steps, rounds=3):
    go()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        go()
        times.append((time.perf_counter() - start) / steps)
    return min(times)


def opacus():
    """DP-SGD on tensors that are already batches: the loop at its fastest, without the Poisson loader."""
    import torch
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    x, y = torch.from_numpy(X), torch.from_numpy(Y)
    model = GradSampleModule(torch.nn.Linear(D, 1, bias=False))
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=BATCH,
    )
    loss = torch.nn.BCEWithLogitsLoss(reduction="sum")

    def go():
        for _ in range(300):
            rows = torch.randint(0, N, (BATCH,))
            optimizer.zero_grad()
            loss(model(x[rows])[:, 0], y[rows]).backward()
            optimizer.step()

    return best(go, 300)


def jax_privacy():
    """Its clipped gradient and its noise, compiled, in a loop over batches on the host, as its own loops do."""
    import jax
    import jax.numpy as jnp
    from jax_privacy import clipping, noise_addition

    def loss(theta, batch):
        x, y = batch
        scores = x @ theta
        return jnp.sum(jnp.logaddexp(scores, 0.0) - y * scores)

    gradient = clipping.clipped_grad(loss, l2_clip_norm=1.0, batch_argnums=1)
    privatizer = noise_addition.gaussian_privatizer(stddev=1.0, prng_key=jax.random.key(0))

    @jax.jit
    def step(theta, state, x, y):
        noisy, state = privatizer.update(gradient(theta, (x, y)), state)
        return theta - 0.1 * noisy / BATCH, state

    def go():
        theta = jnp.zeros(D)
        state = privatizer.init(theta)
        for _ in range(500):
            rows = rng.integers(0, N, BATCH)
            theta, state = step(theta, state, X[rows], Y[rows])
        jax.block_until_ready(theta)

    return best(go, 500)


if __name__ == "__main__":
    found = {}
    if importlib.util.find_spec("opacus"):
        found["Opacus DP-SGD, tensors"] = opacus()
    if importlib.util.find_spec("jax_privacy"):
        found["jax-privacy, its own loop"] = jax_privacy()
    print(json.dumps(found))
