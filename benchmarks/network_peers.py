"""Private steps of other libraries on the network of benchmarks/networks.py, one round for every line of input.

Run by the interpreter of an environment that has torch and opacus, or jax-privacy; what is missing is left out. Prints
one line of JSON (name -> seconds per step) when it is ready, after a first round, and one for each line that it reads.
"""

import importlib.util
import json
import sys
import time
import warnings

import numpy as np

warnings.simplefilter("ignore")
BATCH, STEPS, CLIP = 256, 8, 1.0
rng = np.random.default_rng(0)
IMAGES = rng.random((4096, 28, 28), np.float32)
LABELS = rng.integers(0, 10, 4096)


def torch_network():
    from torch import nn

    return nn.Sequential(
        *(nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1)),
        *(nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1)),
        *(nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10)),
    )


def opacus(mode):
    """DP-SGD on batches that are drawn in place, without the Poisson loader; None: without privacy."""
    import torch
    from opacus import GradSampleModule
    from opacus.grad_sample import GradSampleModuleExpandedWeights
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer
    from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    images, labels = torch.from_numpy(IMAGES)[:, None], torch.from_numpy(LABELS)
    model, loss = torch_network(), torch.nn.CrossEntropyLoss()
    settings = {"noise_multiplier": 1.0, "max_grad_norm": CLIP, "expected_batch_size": BATCH}
    if mode == "ew":
        model = GradSampleModuleExpandedWeights(model, loss_reduction="mean")
    elif mode == "ghost":
        model = GradSampleModuleFastGradientClipping(
            model, max_grad_norm=CLIP, use_ghost_clipping=True, loss_reduction="mean"
        )
    elif mode is not None:
        model = GradSampleModule(model, loss_reduction="mean", force_functorch=mode == "functorch")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    if mode == "ghost":
        optimizer = DPOptimizerFastGradientClipping(optimizer, loss_reduction="mean", **settings)
        loss = DPLossFastGradientClipping(model, optimizer, loss, loss_reduction="mean")
    elif mode is not None:
        optimizer = DPOptimizer(optimizer, loss_reduction="mean", **settings)

    def go():
        for _ in range(STEPS):
            rows = torch.randint(0, len(IMAGES), (BATCH,))
            optimizer.zero_grad()
            loss(model(images[rows]), labels[rows]).backward()
            optimizer.step()

    return go


def jax_privacy():
    """Its clipped gradient and its noise, compiled, in a loop over batches on the host, as its own loops do."""
    import jax
    import jax.numpy as jnp
    from jax_privacy import clipping, noise_addition

    def convolution(x, weights, stride, padding):
        return jax.lax.conv_general_dilated(
            x, weights, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def pool(x):
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "VALID")

    def loss(theta, batch):
        x, y = batch
        x = pool(jax.nn.relu(convolution(x, theta["w1"], 2, [(3, 3), (3, 3)]) + theta["b1"]))
        x = pool(jax.nn.relu(convolution(x, theta["w2"], 2, "VALID") + theta["b2"]))
        x = jax.nn.relu(x.reshape(len(x), -1) @ theta["w3"] + theta["b3"])
        scores = x @ theta["w4"] + theta["b4"]
        return jnp.sum(jax.nn.logsumexp(scores, axis=1) - jnp.take_along_axis(scores, y[:, None], 1)[:, 0])

    shapes = {"w1": (8, 8, 1, 16), "w2": (4, 4, 16, 32), "w3": (512, 32), "w4": (32, 10)}
    theta = {name: jnp.asarray(rng.normal(size=shape) * 0.05, jnp.float32) for name, shape in shapes.items()}
    theta |= {f"b{name[1]}": jnp.zeros(shape[-1]) for name, shape in shapes.items()}
    gradient = clipping.clipped_grad(loss, l2_clip_norm=CLIP, batch_argnums=1)
    privatizer = noise_addition.gaussian_privatizer(stddev=1.0, prng_key=jax.random.key(0))

    @jax.jit
    def step(theta, state, x, y):
        noisy, state = privatizer.update(gradient(theta, (x, y)), state)
        return jax.tree.map(lambda value, change: value - 0.05 * change / BATCH, theta, noisy), state

    def go():
        current, state = theta, privatizer.init(theta)
        for _ in range(STEPS):
            rows = rng.integers(0, len(IMAGES), BATCH)
            current, state = step(current, state, IMAGES[rows][..., None], LABELS[rows])
        jax.block_until_ready(current)

    return go


def contestants():
    found = {}
    if importlib.util.find_spec("opacus"):
        found["torch, not private"] = opacus(None)
        found["Opacus, expanded weights"] = opacus("ew")
        found["Opacus, hooks"] = opacus("hooks")
        found["Opacus, ghost"] = opacus("ghost")
        found["Opacus, functorch"] = opacus("functorch")
    if importlib.util.find_spec("jax_privacy"):
        found["jax-privacy"] = jax_privacy()
    return found


def main():
    known = contestants()
    for go in known.values():
        go()
    print(json.dumps({}), flush=True)
    for _ in sys.stdin:
        seconds = {}
        for name, go in known.items():
            start = time.perf_counter()
            go()
            seconds[name] = (time.perf_counter() - start) / STEPS
        print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main()
