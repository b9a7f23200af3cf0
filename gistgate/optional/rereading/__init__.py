"""Verification by a target that reads every draft twice."""
