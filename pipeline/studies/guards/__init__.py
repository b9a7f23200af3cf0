"""What the guards do to shifted prompts, and how well shadow runs estimate."""
