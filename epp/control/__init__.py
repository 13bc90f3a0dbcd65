"""The control path: seconds to minutes, may be absent."""
