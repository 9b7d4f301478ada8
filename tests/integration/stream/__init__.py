"""Streams on real stores, bookies and processes."""
