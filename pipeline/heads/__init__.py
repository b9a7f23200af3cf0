"""From labelled features to gate heads: reading, splitting by problem, fitting, probability maps, measuring."""
