"""Looks through the objects of a deployment, rendered or live, for what would not work together."""
