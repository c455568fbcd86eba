"""Control plane: snapshots of tables while the log goes on."""
