"""Records as Connect's Avro converters write them, with their schemas in a registry."""
