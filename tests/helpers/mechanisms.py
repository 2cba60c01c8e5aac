"""What an honest run tells of its canaries, without running one."""

import numpy as np

from confide.inference.posterior import Canaries


def simulated(generator, *, chains=1, replaced=False, steps=40, number=60, q=0.1, last=4.0) -> Canaries:
    """What an honest run tells, drawn from the mechanism as it is described."""
    inside = generator.random(number) < 0.5
    sign = np.where(inside, 1.0, -1.0 if replaced else 0.0)
    scale = np.linspace(1.5, last, steps)[:, None]
    shape = (chains, steps, number)
    x = generator.normal(size=shape) * scale + sign * (generator.random(shape) < q)
    z = x / scale
    told = z.sum(axis=1), np.square(z).sum(axis=1), x.sum(axis=1)
    return Canaries(inside, z.sum(axis=(0, 1)), *told, steps, float(np.sum(scale**2)), q, replaced)
