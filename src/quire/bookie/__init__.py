"""The bookie: a storage node that keeps every entry it acknowledged."""
