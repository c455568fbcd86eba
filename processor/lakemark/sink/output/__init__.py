"""Output topics and dead letters."""
