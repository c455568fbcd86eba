"""Snapshots of tables while the stream of changes goes on."""
