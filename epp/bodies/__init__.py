"""What JSON and event bodies say, and small edits in them. Pure; picker and sidecar share it."""
