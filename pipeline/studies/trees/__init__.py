"""What a tree of drafts costs."""
