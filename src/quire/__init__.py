"""Quire: a distributed log for Python, byte-compatible with Apache BookKeeper and DistributedLog."""

__version__ = "0.1.0.dev0"
