"""Results out: Delta tables, dead letters, output topics."""
