"""The state path: soft state about engines, read synchronously by the request path."""
