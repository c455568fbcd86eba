"""Spark: the session, the query and what starts both."""
