"""Shells around the pure ext_proc stream."""
