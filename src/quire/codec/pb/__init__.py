"""Generated from `protos/` by `make protos`. Nothing outside `quire.codec` imports it."""
