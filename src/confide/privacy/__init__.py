"""What a release reveals, what it costs, and what is left of a budget. No JAX and no pandas here."""
