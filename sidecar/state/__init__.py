"""What the sidecar knows of its engine, and how it says so to the log."""
