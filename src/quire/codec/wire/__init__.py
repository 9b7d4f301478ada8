"""The bookie wire protocol as pure functions: what clients and bookies send each other, in both versions, both ways.

    frames          bytes of a connection → frames, and which version of the protocol a frame speaks
    codes           the response codes of both versions, in one table
    v2              fixed binary packets: add, read, batch read, auth
    v3              protobuf envelopes around the values of `v3_messages`
    v3_adds         the same bytes for adds, without copying entries and without a message for each answer
    availability    which entries of a ledger a bookie has

Encoders write whole frames, the length in front included; decoders take what `FrameSplitter` hands out, without it.
A decoder takes any bytes at all and returns values or raises `ProtocolViolation`, upon which the connection is to be
closed. An encoder raises `InvalidArgument` for what the protocol cannot carry. Byte for byte in
docs/reference/wire-protocol.md.
"""
