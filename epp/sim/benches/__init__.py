"""What the way through gateway, picker and sidecar costs."""
