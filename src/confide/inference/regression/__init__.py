"""Private regression: which noisy sums are asked for, and the posterior given their answers; no record is seen."""
