"""Bytes in: topics, records, envelopes, schemas, rows."""
