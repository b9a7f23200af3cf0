"""Certificates: bounds on a loss, fixed-sequence testing, planning, and the file that states what was proved."""
