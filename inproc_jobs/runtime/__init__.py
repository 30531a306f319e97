"""What makes the core run: clock, asyncio driver, thread host, execution of handlers, shutdown."""
