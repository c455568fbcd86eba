"""The way through datums of Avro, compiled by Numba."""
