"""The local stack: real Kafka, Kafka Connect with Debezium and PostgreSQL as child processes.

For `./dev`, the tests and the benchmarks; no part of the installed package. Start reading at
`local.py`.
"""
