"""A simulated engine on the network: HTTP API, KV events, side channel, faults."""
