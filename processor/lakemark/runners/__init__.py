"""What runs a pipeline's batches."""
