"""The ledger client: replicated, fenced, recoverable ledgers on any cluster of bookies."""
