"""Every method timed at its own K."""
