// Campaign, claim, work and release in one call.

import { setTimeout as sleep } from 'node:timers/promises'
import { type Election, LeadershipLost, PAUSE } from './election.js'
import { fencingErrors, isRetryable } from './errors.js'
import { close, type Connection, openConnection, SETTINGS } from './lease.js'
import { setFence } from './pools.js'

/**
 * Puts the election's token in force for these resources, and waits until older holders are gone: what this process reads
 * afterwards is current. Connects to the proxy, by a URL or a function that returns a new connection, and retries until the
 * lease is lost. Rejects with StaleToken or UnissuedToken if another process leads, and with NotLeader if leadership was lost.
 */
export async function claim(
  election: Election,
  connect: string | (() => Promise<Connection>),
  ...resources: string[]
): Promise<void> {
  const { lost } = election
  const attempt = async () => {
    let connection: Connection | undefined
    try {
      connection = await (typeof connect === 'string' ? openConnection(connect) : connect())
      await connection.query(SETTINGS)
      await connection.query(setFence(election))
      for (const resource of resources) await connection.query('SELECT fencegate.claim($1)', [resource])
    } finally {
      close(connection)
    }
  }
  // A proxy that does not answer must not delay the notice of the loss.
  const loss = new Promise<void>((resolve) => lost.addEventListener('abort', () => resolve(), { once: true }))
  for (;;) {
    election.check()
    const failure = await Promise.race([fencingErrors(attempt).catch((error: unknown) => error), loss])
    election.check()
    if (failure === undefined) return
    if (!isRetryable(failure)) throw failure
    await sleep(PAUSE, undefined, { signal: lost }).catch(() => {})
  }
}

export interface RunOptions {
  /** Ends the campaign. */
  signal?: AbortSignal
  /** Resources to claim before the work, and how to connect to the proxy. */
  claim?: readonly string[]
  connect?: string | (() => Promise<Connection>)
}

/**
 * Waits until this process leads, calls the work, and releases. When leadership is lost, `election.lost` is aborted: pass
 * the signal on. Rejects with LeadershipLost instead of the work's result or error if leadership was lost meanwhile.
 *
 * Before the work, it claims the resources in `claim` over a connection to the proxy, for which `connect` is a URL or a
 * function: see `claim`.
 */
export async function runAsLeader<E extends Election, T>(
  election: E,
  work: (election: E, lost: AbortSignal) => T | Promise<T>,
  { signal, ...claimed }: RunOptions = {},
): Promise<T> {
  if (claimed.claim && !claimed.connect) throw new TypeError("claim needs connect, with the proxy's URL")
  await election.acquire({ signal })
  const claimAndWork = async () => {
    if (claimed.claim && claimed.connect) await claim(election, claimed.connect, ...claimed.claim)
    return work(election, election.lost)
  }
  try {
    const [outcome] = await Promise.allSettled([claimAndWork()])
    try {
      election.check()
    } catch (loss) {
      throw new LeadershipLost((loss as Error).message, { cause: outcome.status === 'rejected' ? outcome.reason : loss })
    }
    if (outcome.status === 'rejected') throw outcome.reason
    return outcome.value
  } finally {
    await election.release()
  }
}
