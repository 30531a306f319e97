"""What becomes of events: log lines, listeners, metrics, traces."""
