"""Leases with fencing tokens, and the tokens on every connection of a pool. See README.md."""

from .election import CoordinatorError, CoordinatorUnavailable, Election, Gone, LeadershipLost, NotLeader, now
from .errors import FenceError, FenceUnavailable, InvalidToken, MissingToken, StaleToken, UnissuedToken
from .errors import UnverifiableStatement, fence_error, fencing_errors, is_retryable
from .etcd import EtcdElection
from .lease import Lease
from .pools import asyncpg_setup, fence_engine, psycopg_async_check, psycopg_check, set_fence
from .run import claim, leader, run_as_leader

__all__ = [
    "CoordinatorError", "CoordinatorUnavailable", "Election", "EtcdElection", "FenceError", "FenceUnavailable",
    "Gone", "InvalidToken", "LeadershipLost", "Lease", "MissingToken", "NotLeader", "StaleToken", "UnissuedToken",
    "UnverifiableStatement", "asyncpg_setup", "claim", "fence_engine", "fence_error", "fencing_errors",
    "is_retryable", "leader", "now", "psycopg_async_check", "psycopg_check", "run_as_leader", "set_fence",
]
