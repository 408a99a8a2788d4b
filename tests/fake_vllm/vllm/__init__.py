"""Stands in for the engine, see openai/api_server.py."""
