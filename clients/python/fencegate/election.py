"""Leadership that rests on a lease: campaign, renewal and loss, for any coordinator.

Must never return a token that is not held, and never count a deadline from a later moment than that at which the
answered request was sent. It does not decide who may write: the fence stops a leader that does not notice its loss.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import socket
import threading
import time
import uuid
from abc import ABC, abstractmethod
from typing import Any, Callable, Optional, TypeVar

T = TypeVar("T")
Self = TypeVar("Self", bound="Election")
log = logging.getLogger("fencegate")
log.addHandler(logging.NullHandler())

NOTICE = 0.1  # A loss is announced this many seconds before the deadline.
LAST_WORD = 0.1  # Renewals end this long before the announcement, so that it has the reason of their failure.
PAUSE = 0.1  # Seconds between a failed request and its repetition.
POLL = 1.0  # A waiting candidate polls at least this often.

_CLOCK: Optional[int] = getattr(time, "CLOCK_BOOTTIME", None)


def now() -> float:
    """The clock of `deadline`, in seconds. On Linux it continues while the machine is suspended."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


class NotLeader(Exception):
    """This process does not hold the lease."""


class LeadershipLost(NotLeader):
    """Leadership ended before the work did. The work may have taken effect in part."""


class CoordinatorError(Exception):
    """The database or etcd refuses. A retry does not help."""


class CoordinatorUnavailable(CoordinatorError):
    """The database or etcd did not answer in time. A retry may help."""


class Gone(Exception):
    """The lease, or the place in the queue, is no longer this candidate's."""


def ask(call: Callable[[int], T], limit: float, attempt: float) -> T:
    """Returns the first answer of `call`, which receives the number of the attempt. Another attempt follows an error, and
    runs beside those that are silent for `attempt` seconds: neither a hung server nor a hung driver delays the caller."""
    answers: queue.SimpleQueue[tuple[Optional[T], Optional[BaseException]]] = queue.SimpleQueue()

    def run(number: int) -> None:
        try:
            answers.put((call(number), None))
        except BaseException as error:
            answers.put((None, error))

    end, number, reason = now() + limit, 0, ""
    while True:
        threading.Thread(target=run, args=(number,), name="fencegate", daemon=True).start()
        number += 1
        try:
            answer, error = answers.get(timeout=max(0.001, min(attempt, end - now())))
        except queue.Empty:
            pass
        else:
            if error is None:
                return answer  # type: ignore[return-value]
            if isinstance(error, (Gone, CoordinatorError)) or not isinstance(error, Exception):
                raise error
            reason = f": {str(error).strip() or repr(error)}"
            time.sleep(max(0.0, min(PAUSE, end - now())))
        if now() >= end:
            raise CoordinatorUnavailable(f"no answer within {limit:.1f} s{reason}")


class Term:
    """One candidacy, and the leadership that may follow it."""

    def __init__(self, holder: str) -> None:
        # As `fencegate lead` does: two candidates never have the same name, and a name is never used twice.
        self.identity = f"{holder}#{uuid.uuid4().hex[:16]}"
        self.lease = self.place = 0  # In etcd: the lease, and the create_revision of its key.
        self.token = 0
        self.deadline = 0.0
        self.lost = threading.Event()
        self.reason = ""
        self.is_released = False
        self.callbacks: list[Callable[[], object]] = []


class Election(ABC):
    """An election that this process can lead, many times one after the other. Thread-safe."""

    def __init__(
        self, name: str, ttl: float = 10.0, holder: Optional[str] = None, renew_every: Optional[float] = None
    ) -> None:
        renew_every = ttl / 3 if renew_every is None else renew_every
        if not 2 <= ttl <= 3600:
            raise ValueError("ttl must be 2 to 3600 seconds")
        if not ttl / 9 <= renew_every <= ttl * 4 / 9:
            raise ValueError("renew_every must be between ttl / 9 and ttl * 4 / 9, so that a failed renewal can be repeated")
        self.name = name
        self.ttl = ttl
        self.renew_every = renew_every
        self.holder = holder or f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._attempt = ttl / 9
        self._lock = threading.Lock()
        self._term = Term(self.holder)
        self._term.reason = "no campaign was won"
        self._term.lost.set()

    @abstractmethod
    def _campaign(self, term: Term) -> float:
        """Sets the token and deadline of a winner. Returns the number of seconds until the next check."""

    @abstractmethod
    def _renew(self, term: Term, limit: float) -> float:
        """Returns when the answered renewal was sent."""

    @abstractmethod
    def _leave(self, term: Term, limit: float) -> None:
        """Gives up the lease or the place. Also called if it is not known whether there is one."""

    def _pause(self, seconds: float, stop: threading.Event) -> None:
        """Returns earlier if a check is worthwhile, or if the campaign must stop."""
        stop.wait(seconds)

    @property
    def lost(self) -> threading.Event:
        """Set while this process does not lead: at the latest 100 ms before the deadline. Each term has its own event."""
        return self._term.lost

    @property
    def deadline(self) -> float:
        """End of the lease on the clock `fencegate.now()`: one TTL after the last answered renewal was sent. No other
        candidate leads before it."""
        return self._term.deadline

    @property
    def token(self) -> int:
        """The fencing token. Raises NotLeader if it is not held."""
        term = self._term
        self._check(term)
        return term.token

    def check(self) -> None:
        """Raises NotLeader if this process does not lead."""
        self._check(self._term)

    def _check(self, term: Term) -> None:
        if term.lost.is_set() or now() >= term.deadline - NOTICE:
            raise NotLeader(f"this process does not lead {self.name}: {term.reason or 'the lease was not renewed'}")

    def on_lost(self, callback: Callable[[], object]) -> None:
        """Calls `callback` in another thread when this term is lost, but not after `release`; immediately if the term
        is already lost. The callback must not block."""
        with self._lock:
            term = self._term
            if not term.lost.is_set():
                term.callbacks.append(callback)
                return
        callback()

    def acquire(self, timeout: Optional[float] = None) -> bool:
        """Waits until this process leads, for at most this many seconds; 0 tries once. Returns whether it leads."""
        return self._acquire(timeout, threading.Event())

    def _acquire(self, timeout: Optional[float], stop: threading.Event) -> bool:
        if not self._term.lost.is_set():
            raise RuntimeError(f"this process already leads {self.name}")
        end = None if timeout is None else now() + timeout
        while True:
            term = Term(self.holder)
            try:
                while True:
                    pause = min(self._campaign(term), POLL)
                    if term.token:
                        break
                    if end is not None:
                        pause = min(pause, end - now())
                    if pause <= 0:
                        return False
                    self._pause(pause, stop)
                    if stop.is_set():
                        return False
                if stop.is_set():
                    return False
                if now() < term.deadline - NOTICE:
                    self._term = term
                    threading.Thread(target=self._keep, args=(term,), name="fencegate", daemon=True).start()
                    return True
            except Gone:
                stop.wait(PAUSE)
            finally:
                if self._term is not term:
                    self._try_to_leave(term)

    def _keep(self, term: Term) -> None:
        """Renews the lease until it is lost or released."""
        reason, following = "this process was suspended", term.deadline - self.ttl + self.renew_every
        while True:
            end = term.deadline - NOTICE
            if term.lost.wait(max(0.0, min(following, end) - now())):
                return
            if end - now() <= LAST_WORD:
                term.lost.wait(max(0.0, end - now()))
                return self._lose(term, f"the lease was not renewed: {reason}")
            try:
                sent = self._renew(term, end - now() - LAST_WORD)
            except Gone:
                return self._lose(term, "the lease was revoked")
            except Exception as error:
                reason, following = str(error), now() + self._attempt
            else:
                # An answer that comes after the loss would have been announced does not count.
                if now() < end:
                    term.deadline = max(term.deadline, sent + self.ttl)
                    following = sent + self.renew_every

    def _lose(self, term: Term, reason: str) -> None:
        if self._end(term, reason):
            log.warning("lease_lost election=%s token=%s: %s", self.name, term.token, reason)
            for callback in term.callbacks:
                try:
                    callback()
                except Exception:
                    log.exception("a callback of on_lost failed")

    def _end(self, term: Term, reason: str) -> bool:
        with self._lock:
            if term.lost.is_set():
                return False
            term.reason = reason
            term.lost.set()
            return True

    def release(self) -> None:
        """Ends leadership, so that another can lead at once. Call it when all work under the token has ended. Does nothing
        if this process does not lead. If the coordinator does not answer, the lease ends by itself."""
        term = self._term
        self._end(term, "it was released")
        with self._lock:
            is_first, term.is_released = not term.is_released, True
        if term.token and is_first:
            self._try_to_leave(term)

    def _try_to_leave(self, term: Term) -> None:
        try:
            self._leave(term, self._attempt * 2)
        except Exception as error:
            log.debug("the lease of %s could not be released: %s", self.name, error)

    def __enter__(self: Self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    async def acquire_async(self, timeout: Optional[float] = None) -> bool:
        """As `acquire`, in asyncio. A canceled campaign withdraws."""
        stop = threading.Event()
        return await in_thread(lambda: self._acquire(timeout, stop), stop.set, self.release)

    async def release_async(self) -> None:
        """As `release`, in asyncio."""
        await in_thread(self.release)

    async def __aenter__(self: Self) -> Self:
        await self.acquire_async()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release_async()


async def in_thread(
    function: Callable[[], T], on_cancel: Callable[[], object] = int, undo: Callable[[], object] = int
) -> T:
    """Runs a blocking function in a thread. If the caller is canceled, calls `on_cancel`. If the function then
    still returns a result, calls `undo` in a thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: Any, error: Optional[BaseException]) -> None:
        if future.cancelled():
            threading.Thread(target=undo, name="fencegate", daemon=True).start()
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def run() -> None:
        result: Any = None
        failure: Optional[BaseException] = None
        try:
            result = function()
        except BaseException as error:
            failure = error
        try:
            loop.call_soon_threadsafe(settle, result, failure)
        except RuntimeError:  # The loop is closed.
            undo()

    threading.Thread(target=run, name="fencegate", daemon=True).start()
    try:
        return await future
    except asyncio.CancelledError:
        on_cancel()
        if not future.cancelled():
            threading.Thread(target=undo, name="fencegate", daemon=True).start()
        raise
