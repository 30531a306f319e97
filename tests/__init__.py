"""The tests of inproc_jobs; what lies in which folder is told in CONTRIBUTING.md."""
