"""What one request remembers: its rows, their statistics, and where an answer stops."""
