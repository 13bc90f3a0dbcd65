"""Whether a part of a request runs on an endpoint of its own."""
