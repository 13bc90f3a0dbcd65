"""Images, audio and video that other pods encode before the prompt is computed."""
