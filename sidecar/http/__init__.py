"""The relay's HTTP: bodies both ways, header fields, refusals, what answers say of themselves."""
