"""The write proxy: many clients append to streams that it owns. See `quire.proxy.write.proxy`."""
