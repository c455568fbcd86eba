"""The state of a pipeline: what each batch leaves behind, and the changes to it between batches."""
