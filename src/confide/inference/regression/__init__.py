"""Private regression: which noisy sums are released, and the posterior given them. Nothing here sees a record."""
