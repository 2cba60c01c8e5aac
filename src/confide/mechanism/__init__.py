"""One noisy sum over the records; nothing after it ever sees a record."""
