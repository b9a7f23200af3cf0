"""The page of one answer, and a local page that decodes while one watches."""
