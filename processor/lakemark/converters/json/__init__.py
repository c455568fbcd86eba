"""Records as Connect's JSON converter writes them."""
