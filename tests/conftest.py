"""Makes `tests/` importable, so that tests share `mock_server`."""
