"""One reader per database."""
