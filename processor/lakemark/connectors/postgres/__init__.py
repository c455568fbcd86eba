"""PostgreSQL: catalog, types, conditions, and how its rows are read."""
