"""Which profiles a request runs through."""
