"""Campaign, work and release in one call."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from typing import Any, Awaitable, Callable, Optional, TypeVar, Union, overload

from .election import Election, LeadershipLost, NotLeader
from .lease import Lease

T = TypeVar("T")


@overload
def run_as_leader(election: Election, work: Callable[[Election], Awaitable[T]]) -> Awaitable[T]: ...
@overload
def run_as_leader(election: Election, work: Callable[[Election], T]) -> T: ...
def run_as_leader(election: Election, work: Callable[[Election], Any]) -> Any:
    """Waits until this process leads, calls `work(election)`, and releases. Raises LeadershipLost instead of the work's
    result or exception if leadership was lost meanwhile.

    A coroutine is canceled when leadership is lost: await the result. Python cannot cancel a thread: a plain function
    must wait with `election.lost.wait(seconds)` and call `election.check()`; the fence stops it otherwise.
    """
    if inspect.iscoroutinefunction(work):
        return _run_async(election, work)
    election.acquire()
    try:
        result = work(election)
    except Exception as error:
        _raise_if_lost(election, error)
        raise
    else:
        _raise_if_lost(election, None)
        return result
    finally:
        election.release()


async def _run_async(election: Election, work: Callable[[Election], Any]) -> Any:
    await election.acquire_async()
    task = asyncio.ensure_future(work(election))
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


def _raise_if_lost(election: Election, cause: Optional[BaseException]) -> None:
    try:
        election.check()
    except NotLeader as error:
        raise LeadershipLost(str(error)) from cause


def leader(election: Union[Election, str], **options: Any) -> Callable[[Callable[[Election], T]], Callable[[], T]]:
    """Decorates a function that runs only as leader: `@leader("beat")`. A name means a lease in the database of
    FENCEGATE_COORDINATOR, which is read when the function is called."""

    def decorate(work: Callable[[Election], T]) -> Callable[[], T]:
        @functools.wraps(work)
        def run() -> T:
            if isinstance(election, Election):
                return run_as_leader(election, work)
            return run_as_leader(Lease(os.environ["FENCEGATE_COORDINATOR"], election, **options), work)

        return run

    return decorate
