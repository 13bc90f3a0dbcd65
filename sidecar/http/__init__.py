"""The relay's HTTP, whichever shell moves the bytes: bodies, header fields, refusals, measuring."""
