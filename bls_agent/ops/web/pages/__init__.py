"""HTML for people: pages, fragments of pages, and what stands on them."""
