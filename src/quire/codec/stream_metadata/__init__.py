"""What DistributedLog keeps of namespaces and streams in the metadata tree: names, paths and contents of nodes.

    binding    which ledger cluster a namespace writes to
    names      what a stream may be called
    tree       the nodes of one stream, and those that hold a single number
    segment    one segment: the name of its node and what it says
    lock       the members of a lock: who waits, and in which order

Invariant: every decoder here takes any bytes and returns a value or raises `DamagedMetadata`, nothing else.
"""
