"""Drafts that branch: how candidates become one tree, how a model reads it at once, and which path of it stays."""
