"""Programs that a model wrote, run with limits in processes of their own."""
