"""`lakemark plan`: what a run would do."""
