"""What Kafka Connect's converters write, read and written."""
