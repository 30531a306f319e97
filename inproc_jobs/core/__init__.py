"""The whole truth about jobs, as a pure state machine: commands and `now_ms` in, results and events out; no I/O."""
