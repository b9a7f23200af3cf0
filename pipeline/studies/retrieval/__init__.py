"""Retrieval: drafters that know training texts, and what they cost and bring with every rule, certified together."""
