"""The facade that users meet; import its names from `inproc_jobs`."""
