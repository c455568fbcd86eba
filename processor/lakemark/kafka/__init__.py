"""The brokers: clients, their settings and errors, and topics by name."""
