"""SemanticSpec (arXiv 2602.03708): a whole piece of reasoning is judged by its meaning."""
