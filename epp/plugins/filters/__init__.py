"""Which candidates stay."""
