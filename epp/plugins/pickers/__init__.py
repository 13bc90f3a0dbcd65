"""Which of the rated candidates are chosen."""
