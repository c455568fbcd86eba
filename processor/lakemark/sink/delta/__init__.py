"""Delta tables: three engines, their log, files and upkeep."""
