"""The fast way through records of JSON, compiled by Numba."""
