"""Writes the overlay of one pool from the kustomize parts that are shipped (`manifests/`). Pure."""
