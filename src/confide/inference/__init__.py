"""Plan, pay, run: from a model, records and a budget to a posterior."""
