"""HTML for people: pages and fragments of pages."""
