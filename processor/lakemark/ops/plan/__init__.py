"""`lakemark plan`: the effects of a run, found out before it."""
