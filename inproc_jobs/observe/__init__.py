"""What the engine tells the outside: logs and events."""
