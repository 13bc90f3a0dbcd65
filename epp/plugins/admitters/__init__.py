"""Whether a request is served at all."""
