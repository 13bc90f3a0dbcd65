"""One small parser for each API family; what none of them knows passes unscored."""
