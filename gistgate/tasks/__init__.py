"""What models are asked and how answers are judged: tasks, prompts, and our own kinds of tasks."""
