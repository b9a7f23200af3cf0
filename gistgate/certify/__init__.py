"""One endpoint against another: asking both, judging the answers, and the card with the result."""
