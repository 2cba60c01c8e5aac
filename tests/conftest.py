"""Shared by all tests: hypothesis without deadlines, and the same examples in every run."""

from hypothesis import settings

settings.register_profile("confide", deadline=None, derandomize=True, print_blob=False)
settings.load_profile("confide")
