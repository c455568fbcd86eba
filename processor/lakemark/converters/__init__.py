"""Records in the forms of Kafka Connect's converters, read and written."""
