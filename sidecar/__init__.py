"""Per-pod proxy: relays requests to its engine and publishes the engine's state."""
