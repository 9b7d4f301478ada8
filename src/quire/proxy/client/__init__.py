"""The thin client: streams behind proxies, with the API of those who reach bookies themselves.

    quire.connect("quire://proxy1:7400,proxy2:7400/ns")

client       the streams of a namespace, by name
writer       one writer of a stream, of as many as there are; over lane (the batches of one stream, in order),
             write_call (one call to one proxy) and writing (all calls, and what comes of them)
remote_source, reader      the entries of a stream from a read proxy, for the reader that everybody uses
requests     single calls: to the owner of a stream, or to anybody
hosts, watching            which proxies there are, and which of them own what
settings, uri              what may be tuned, and where proxies are
"""
