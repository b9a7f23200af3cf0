"""From label rows to gate heads: reading, splitting by problem, fitting, probability maps, measuring."""
