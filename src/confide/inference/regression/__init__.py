"""Private regression: which noisy sums are asked for, and the posterior given their answers. Nothing here sees a record."""
