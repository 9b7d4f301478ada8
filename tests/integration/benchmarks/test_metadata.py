"""Every operation of a metadata store is measured."""

from benchmarks.metadata import bench_metadata


async def test_every_operation_is_measured() -> None:
    results = await bench_metadata("memory:", 10)
    assert len({result.operation for result in results}) == len(results) == 7
    assert all(result.cpu_us_each > 0 for result in results)
