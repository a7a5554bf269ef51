"""Campaign, claim, work and release in one call."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import queue
import threading
from typing import Any, Awaitable, Callable, Optional, Sequence, TypeVar, Union, overload

from .election import PAUSE, Election, LeadershipLost, NotLeader, in_thread
from .errors import fencing_errors, is_retryable
from .lease import SETTINGS, Lease, close, execute, open_connection
from .pools import set_fence

T = TypeVar("T")
Connect = Union[str, Callable[[], Any]]
"""A URL, or a function that returns a new DB-API connection."""


def claim(election: Election, connect: Connect, *resources: str) -> None:
    """Puts the election's token in force for these resources, and waits until older holders are gone: what this process
    reads afterwards is current. Connects to the proxy, and retries until the lease is lost. Raises StaleToken or
    UnissuedToken if another process leads, and NotLeader if leadership was lost."""
    answers: queue.SimpleQueue[Optional[BaseException]] = queue.SimpleQueue()
    election.on_lost(lambda: answers.put(None))

    def attempt() -> None:
        connection = None
        try:
            with fencing_errors():
                connection = connect() if callable(connect) else open_connection(connect)
                execute(connection, SETTINGS)
                execute(connection, set_fence(election))
                for resource in resources:
                    execute(connection, "SELECT fencegate.claim(%s)", (resource,))
            answers.put(None)
        except BaseException as error:
            answers.put(error)
        finally:
            close(connection)

    while True:
        lost = election.lost
        # A proxy that does not answer must not delay the notice of the loss.
        threading.Thread(target=attempt, name="fencegate", daemon=True).start()
        error = answers.get()
        election.check()
        if error is None:
            return
        if not is_retryable(error):
            raise error
        lost.wait(PAUSE)


@overload
def run_as_leader(
    election: Election,
    work: Callable[[Election], Awaitable[T]],
    *,
    claim: Sequence[str] = (),
    connect: Optional[Connect] = None,
) -> Awaitable[T]: ...
@overload
def run_as_leader(
    election: Election, work: Callable[[Election], T], *, claim: Sequence[str] = (), connect: Optional[Connect] = None
) -> T: ...
def run_as_leader(
    election: Election, work: Callable[[Election], Any], *, claim: Sequence[str] = (), connect: Optional[Connect] = None
) -> Any:
    """Waits until this process leads, calls `work(election)`, and releases. Raises LeadershipLost instead of the work's
    result or exception if leadership was lost meanwhile.

    Before the work, it claims the resources in `claim` over a connection to the proxy, for which `connect` is a URL or a
    function: see `fencegate.claim`.

    A coroutine is canceled when leadership is lost: await the result. Python cannot cancel a thread: a plain function
    must wait with `election.lost.wait(seconds)` and call `election.check()`; the fence stops it otherwise.
    """
    if isinstance(claim, str) or (claim and connect is None):
        raise TypeError("claim needs a list of resources, and connect= with the proxy's URL")
    if inspect.iscoroutinefunction(work):
        return _run_async(election, work, claim, connect)
    election.acquire()
    try:
        _claim(election, connect, claim)
        result = work(election)
    except Exception as error:
        _raise_if_lost(election, error)
        raise
    else:
        _raise_if_lost(election, None)
        return result
    finally:
        election.release()


async def _run_async(
    election: Election, work: Callable[[Election], Any], claimed: Sequence[str], connect: Optional[Connect]
) -> Any:
    await election.acquire_async()

    async def claim_and_work() -> Any:
        if claimed:
            await in_thread(lambda: _claim(election, connect, claimed))
        return await work(election)

    task = asyncio.ensure_future(claim_and_work())
    loop = asyncio.get_running_loop()

    def cancel() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(task.cancel)

    election.on_lost(cancel)
    try:
        await asyncio.wait([task])
        _raise_if_lost(election, None if task.cancelled() else task.exception())
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
        await election.release_async()


def _claim(election: Election, connect: Optional[Connect], resources: Sequence[str]) -> None:
    if resources and connect is not None:
        claim(election, connect, *resources)


def _raise_if_lost(election: Election, cause: Optional[BaseException]) -> None:
    try:
        election.check()
    except NotLeader as error:
        raise LeadershipLost(str(error)) from cause


def leader(
    election: Union[Election, str], *, claim: Sequence[str] = (), connect: Optional[Connect] = None, **options: Any
) -> Callable[[Callable[[Election], T]], Callable[[], T]]:
    """Decorates a function that runs only as leader, by `run_as_leader`: `@leader("beat")`. A name means a lease in the
    database of FENCEGATE_COORDINATOR, which is read when the function is called; `options` are those of Lease."""

    def decorate(work: Callable[[Election], T]) -> Callable[[], T]:
        @functools.wraps(work)
        def run() -> T:
            if isinstance(election, Election):
                return run_as_leader(election, work, claim=claim, connect=connect)
            lease = Lease(os.environ["FENCEGATE_COORDINATOR"], election, **options)
            return run_as_leader(lease, work, claim=claim, connect=connect)

        return run

    return decorate
