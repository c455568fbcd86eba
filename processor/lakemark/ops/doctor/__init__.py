"""`lakemark doctor`: questions to Kafka, Connect, the database and the machine, and findings."""
