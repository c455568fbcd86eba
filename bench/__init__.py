"""The benchmarks: lakemark against the pipeline that is usually written by hand."""
