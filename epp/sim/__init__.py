"""Simulated engines and local fleets: demo, tests, replay."""
