"""Streams for tests: a simulated cluster with a namespace on it, streams laid by hand, histories and their proof."""
