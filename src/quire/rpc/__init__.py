"""The client side of the bookie wire protocol: connections to bookies, and what their answers mean.

channel              `BookieChannel`, one connection: adds and reads in runs, everything else as calls
connection           the bytes and the life of it
adds, reads, calls   what waits for an answer, and how answers find their way
errors               the one table from answers to errors
settings             what may be tuned
"""

from quire.rpc.adds import AddAnswers, AddSink, EntryIds
from quire.rpc.channel import BookieChannel
from quire.rpc.errors import status_error
from quire.rpc.reads import ReadRun
from quire.rpc.settings import ChannelSettings

__all__ = ["AddAnswers", "AddSink", "BookieChannel", "ChannelSettings", "EntryIds", "ReadRun", "status_error"]
