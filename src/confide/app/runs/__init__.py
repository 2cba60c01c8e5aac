"""The folder of a run: what was asked, its records, its files, and what can be done with them later."""
