"""Settings of what feeds data to the other plugins; the picker itself does the work."""
