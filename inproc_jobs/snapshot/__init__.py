"""What is written and read back, so that jobs survive the process."""
