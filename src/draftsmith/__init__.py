"""Draftsmith makes speculative decoding pay, and proves it."""

__version__ = "0.1.0"
