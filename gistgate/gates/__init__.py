"""Trained judges of draft tokens: what they look at, what they are, and the folder they live in."""
