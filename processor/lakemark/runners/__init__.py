"""The runners of a pipeline's batches."""
