"""Snapshot chunks against the log."""
