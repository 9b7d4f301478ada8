"""Cold storage: completed segments as Parquet files in folders, S3 or HDFS.

`ColdStore` is what the rest needs of such a place, `ColdStores` finds one by its URI, and `parquet_writer` and
`parquet_reader` know the files. Nothing here knows streams' metadata: see `quire.stream.archiving` for that. The
libraries that files and remote stores need are imported when they are used, so that streams that have nothing in cold
storage are read without them.
"""

from quire.cold.store import ColdStore
from quire.cold.stores import ColdStores

__all__ = ["ColdStore", "ColdStores"]
