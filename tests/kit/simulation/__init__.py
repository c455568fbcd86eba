"""A whole pipeline in memory, from open transactions to the lake, driven by dice alone."""
