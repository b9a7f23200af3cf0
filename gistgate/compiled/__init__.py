"""The compiled engine: static memory, and rounds of drafting and verifying as compiled programs."""
