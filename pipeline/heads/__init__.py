"""Training and measuring gate heads."""
