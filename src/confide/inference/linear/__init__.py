"""Scoring of linear models whose noise scale is learnt, and their noisy sufficient statistics."""
