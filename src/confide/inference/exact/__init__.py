"""Chains that draw from a posterior exactly, behind a sample that is released."""
