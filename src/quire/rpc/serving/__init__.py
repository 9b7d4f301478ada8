"""How clients and proxies talk, whatever carries it: the calls of `quire.v1`, and what their results mean.

methods         every call of the API, from its .proto file
transport       what carries calls, as those above see it
results         the one table between results, errors, gRPC statuses and HTTP statuses
grpc_channel    calls of gRPC from a client's side
grpc_server     a listening address of a proxy; `grpc_server_connection` one connection, `grpc_serving` one call
http2_connection, http2_call    what both sides of a connection and of a call have in common
grpc_headers    who calls, and how calls end, as headers
health, reflection    the standard services; `refusals` counts what is not taken; `settings`
"""
