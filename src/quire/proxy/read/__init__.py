"""The read proxy: entries are read once, for however many readers. See `quire.proxy.read.proxy`."""
