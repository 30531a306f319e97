"""The test kit for programs built on this package: virtual time, assertions, a pytest fixture."""
