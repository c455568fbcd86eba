"""`lakemark trace`: the story of one row."""
