"""The writing side of the log, for one engine: in its sidecar, or in the picker that is elected."""
