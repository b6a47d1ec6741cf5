"""numpy, whose arrays and matrix products are memory and threads beneath Python's own."""

from __future__ import annotations

import subprocess

import pytest

from tests.hosting import MIB, LiveWarden
from tests.runtimes.programs import ended, run, said, script


@pytest.fixture(autouse=True)
def _numpy() -> None:
    question = "import importlib.util as u, sys; sys.exit(u.find_spec('numpy') is None)"
    if subprocess.run(["/usr/bin/python3", "-I", "-c", question], check=False).returncode:
        pytest.skip("numpy is not installed for /usr/bin/python3")


def test_matrix_products_in_threads_and_linear_equations(warden: LiveWarden) -> None:
    source = """
import numpy
from concurrent.futures import ThreadPoolExecutor
ones = numpy.ones((200, 200))
with ThreadPoolExecutor(4) as pool:
    products = list(pool.map(lambda n: (n * ones) @ ones, range(8)))
print([int(product[0, 0]) for product in products])
matrix = numpy.random.default_rng(1).random((50, 50))
right = numpy.arange(50.0)
print(numpy.allclose(matrix @ numpy.linalg.solve(matrix, right), right))
print(numpy.fft.fft(numpy.eye(1, 8)).real.sum())
"""
    (result,) = run(warden, script(source))
    assert said(result) == f"{[200 * n for n in range(8)]}\nTrue\n8.0\n"


def test_arrays_are_shared_between_processes_and_mapped_from_files(warden: LiveWarden) -> None:
    source = """
import multiprocessing, numpy
def fill(path, part):
    mapped = numpy.memmap(path, 'int64', 'r+', shape=(4, 1000))
    mapped[part] = part
    mapped.flush()
if __name__ == '__main__':
    for path in ('mapped', '/dev/shm/mapped'):
        mapped = numpy.memmap(path, 'int64', 'w+', shape=(4, 1000))
        with multiprocessing.Pool(2) as pool:
            pool.starmap(fill, [(path, part) for part in range(4)])
        print(mapped.sum())
"""
    (result,) = run(warden, script(source))
    assert said(result) == "6000\n6000\n"


def test_an_array_beyond_the_limit_is_the_kernels_kill_and_one_beyond_all_is_an_error(
    warden: LiveWarden,
) -> None:
    filled, refused = run(
        warden,
        script("import numpy; numpy.ones(1 << 26)", memory_bytes=128 * MIB),
        script("import numpy; numpy.ones(1 << 50)", memory_bytes=128 * MIB),
    )
    assert ended(filled) == ("memory_limit", None, None, None)
    assert filled.stats.oom_kills >= 1
    assert ended(refused) == ("completed", None, 1, None)
    assert b"Unable to allocate" in refused.stderr
