"""Disturb the pipeline at random and at chosen moments, let it finish, and compare it with an undisturbed run."""
