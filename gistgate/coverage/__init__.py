"""What decodes, what it is asked, and whether a certificate covers it."""
