"""A small Kubernetes API server for tests and benchmarks: what a client sees of a real one."""
