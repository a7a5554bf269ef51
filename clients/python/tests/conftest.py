import itertools

import pytest
from servers import Etcd, Postgres, Proxy


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("servers")
    # The server's user must reach its own folder.
    for path in [folder, *folder.parents]:
        if path.stat().st_mode & 0o005 != 0o005:
            path.chmod(0o755)
    return folder


@pytest.fixture(scope="session")
def postgres(folder):
    server = Postgres(folder / "postgres")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def proxy(folder, postgres):
    """The proxy. The database has leases."""
    server = Proxy(folder / "proxy", postgres)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def etcd(folder):
    server = Etcd(folder / "etcd")
    yield server
    server.stop()


numbers = itertools.count(1)


@pytest.fixture
def name():
    """Of an election that no other test uses."""
    return f"test/{next(numbers)}"


tokens = itertools.count(1)


@pytest.fixture
def next_token():
    """A token that is higher than those before it."""
    return lambda: next(tokens)
