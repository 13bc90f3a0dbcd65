"""Typed settings and the documents that users write."""
