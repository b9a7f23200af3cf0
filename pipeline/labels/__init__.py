"""Mismatches of target and draft, their rollouts, labels and features."""
