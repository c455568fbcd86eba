"""Operating a pipeline: logs, metrics, the HTTP endpoint, the doctor."""
