"""PyTorch on the work of benchmarks/shadows.py; prints JSON: name -> seconds for all networks.

One thread: matrices of 32 by 64 are too small to share, and with two it is slower.
"""

import json
import time

import numpy as np
import torch
from torch.func import functional_call, grad, stack_module_state, vmap

torch.set_num_threads(1)
NETWORKS, EPOCHS, BATCH = 64, 30, 32
rng = np.random.default_rng(0)
X = torch.from_numpy(rng.normal(size=(1000, 24)).astype(np.float32))
Y = torch.from_numpy((rng.random(1000) < 0.3).astype(np.int64))
SUBSETS = torch.from_numpy(np.stack([rng.permutation(1000)[:400] for _ in range(NETWORKS)]))


def network():
    layers = torch.nn.Linear(24, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)
    return torch.nn.Sequential(*layers)


def one_after_another(count=NETWORKS):
    """The usual loop, on tensors that are already in memory: no loader."""
    for subset in SUBSETS[:count]:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        halved = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
        loss = torch.nn.CrossEntropyLoss()
        for _ in range(EPOCHS):
            for rows in subset[torch.randperm(len(subset))].split(BATCH):
                optimizer.zero_grad()
                loss(model(X[rows]), Y[rows]).backward()
                optimizer.step()
            halved.step()


def together(count=NETWORKS):
    """torch.vmap over the networks, and a step of SGD by hand."""
    weights, _ = stack_module_state([network() for _ in range(count)])
    weights = {name: value.detach() for name, value in weights.items()}
    skeleton = network().to("meta")

    def loss(weights, x, y):
        return torch.nn.functional.cross_entropy(functional_call(skeleton, (weights, {}), (x,)), y)

    gradient, rate = vmap(grad(loss)), 0.1
    for epoch in range(EPOCHS):
        order = torch.stack([subset[torch.randperm(len(subset))] for subset in SUBSETS[:count]])
        for rows in order.split(BATCH, dim=1):
            slopes = gradient(weights, X[rows], Y[rows])
            weights = {name: value - rate * slopes[name] for name, value in weights.items()}
        rate = rate / 2 if epoch % 5 == 4 else rate


def seconds(go):
    go(2)
    start = time.perf_counter()
    go()
    return time.perf_counter() - start


if __name__ == "__main__":
    print(
        json.dumps({"PyTorch, one after another": seconds(one_after_another), "PyTorch, torch.vmap": seconds(together)})
    )
