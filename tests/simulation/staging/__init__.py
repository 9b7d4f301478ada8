"""Sinks of a simulated stream: drivers, their doubles, writers and sweepers, while everything around them fails."""
