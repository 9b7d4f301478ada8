"""The byte formats of DistributedLog's records, as pure functions.

    limits          how large a record and an entry may be
    dlsn            the place of a record, as bytes and as text
    records         one record after the other, with 20 bytes before each
    record_sets     many small payloads as the payload of one record
    entries         what a ledger entry of a stream holds: an envelope around records, perhaps compressed
    compression     the codecs of envelopes and sets

A decoder takes any bytes at all and returns values or raises `DamagedEntry`; for a DLSN, which is stored in metadata,
`DamagedMetadata`. An encoder raises `InvalidArgument` for what Apache's readers would not take.

Apache's reader takes a record that is cut short, or whose length is negative, for the end of its entry, and an unknown
codec for none. Here they are damage: to drop records without a word is the one thing that a log must not do.
"""
