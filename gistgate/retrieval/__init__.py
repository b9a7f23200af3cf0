"""SENSE: a datastore of hidden states, its search, and the drafters that read it."""
