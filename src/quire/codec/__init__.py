"""Bytes to values and back: pure functions, one module for each format.

Every decoder takes any bytes at all and either returns a value or raises the error of its format: `DamagedMetadata`,
`DamagedEntry`, `DamagedJournal`, or `ProtocolViolation` for what came over the wire. Every encoder writes only what
Apache's programs of the same format version can read; it raises `InvalidArgument` for a value that the format cannot
hold, instead of dropping a part of it.
"""
