/** Leases with fencing tokens, and the tokens on every connection of a pool. See README.md. */
export {
  CoordinatorError, CoordinatorUnavailable, Election, LeadershipLost, NotLeader, now, type Options,
} from './election.js'
export {
  FenceError, FenceUnavailable, fenceError, fencingErrors, InvalidToken, isRetryable, MissingToken, StaleToken,
  UnissuedToken, UnverifiableStatement,
} from './errors.js'
export { EtcdElection } from './etcd.js'
export { type Connection, Lease } from './lease.js'
export { type FencedSql, fencePool, fenceSql, setFence, type Source } from './pools.js'
export { claim, runAsLeader, type RunOptions } from './run.js'
