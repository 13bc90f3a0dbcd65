"""What the two legs of a handoff need besides the state machine: values, trust, drivers."""
