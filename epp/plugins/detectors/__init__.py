"""How full a pool is."""
