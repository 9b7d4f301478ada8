"""Streams: namespaces of logs that are made of segments, with one writer and many readers each (DistributedLog)."""
