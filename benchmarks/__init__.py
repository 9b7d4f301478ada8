"""What Quire costs, alone and beside Apache: `python -m benchmarks --help`. docs/performance.md has the figures."""
