"""How many labels a gate needs, how noisy they are, and which features help."""
