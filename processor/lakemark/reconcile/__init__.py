"""Reconciliation of snapshot chunks with the log."""
