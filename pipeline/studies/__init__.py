"""Questions about labels and features, answered from a finished run's files; one command each."""
