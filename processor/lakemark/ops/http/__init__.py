"""The HTTP server beside the query, and its page."""
