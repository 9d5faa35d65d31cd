"""The local console: a page for people, and the HTTP interface of contract 002."""
