"""The connectors of a pipeline: one, or several side by side."""
