"""A whole log inside one folder and one process: bookies and metadata without a server, a port, or a setting."""

from quire.embedded.folder import NAMESPACE, DataFolder, FileUri, hold_folder, is_file_uri, parse_file_uri
from quire.embedded.log import open_embedded, open_embedded_ledgers

__all__ = [
    "NAMESPACE",
    "DataFolder",
    "FileUri",
    "hold_folder",
    "is_file_uri",
    "open_embedded",
    "open_embedded_ledgers",
    "parse_file_uri",
]
