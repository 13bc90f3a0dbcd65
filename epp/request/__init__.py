"""The request path: parse, choose, answer. Waits for nothing but its own stream."""
