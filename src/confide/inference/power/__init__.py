"""What a budget buys before it is spent: expected widths of intervals, from public numbers alone. No JAX here."""
