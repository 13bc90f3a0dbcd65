"""Whom a sidecar believes and what it offers of itself: seals, certificates, pairs, breakers."""
