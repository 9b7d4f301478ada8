"""The serving tier: proxies that many clients write and read streams through, and the client of them."""
