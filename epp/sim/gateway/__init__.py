"""The bootstrap of a standalone Envoy in front of the picker."""
