"""What we promise, each promise checked with real requests."""
