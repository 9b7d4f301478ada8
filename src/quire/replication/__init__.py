"""Autorecovery: an elected auditor finds ledgers that lack copies and marks them; workers copy what is missing."""
