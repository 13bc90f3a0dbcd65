"""The relay on aiohttp: what `sidecar.relay` is measured and tested against."""
