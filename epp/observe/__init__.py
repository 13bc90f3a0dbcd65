"""What operators see: metrics, health, explanations."""
