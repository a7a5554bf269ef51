// Leases in PostgreSQL: an election on `fencegate.acquire`, `renew` and `release`.

import { setTimeout as sleep } from 'node:timers/promises'
import { ask, CoordinatorError, Election, Gone, now, type Options, type Term } from './election.js'

/** Milliseconds to connect to one host. */
const CONNECT = 2000
/** A waiting candidate that is notified polls at least this often. */
const LONG = 60_000
/** They override the role's defaults. */
export const SETTINGS = "SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = off"
/** Classes of SQLSTATEs after which a retry may succeed. Other codes of two capitals and digits are refusals. */
const TRANSIENT = /^(08|25|40|53|55|57|58|XX)/
const SQLSTATE = /^[0-9A-Z]{5}$/

/** A connection to the primary, such as a connected `Client` of node-postgres. */
export interface Connection {
  query(text: string, values?: unknown[]): Promise<{ rows: any[] }>
  end(): Promise<void>
  /** Of node-postgres: notifications wake a waiting candidate. */
  on?(event: 'notification', listener: (notification: { payload?: string }) => void): unknown
}

/**
 * An election in a PostgreSQL database that `fencegate init` has prepared. The URL may name several hosts:
 * `postgres://app@a,b/app`. In place of a URL, a function may return a new connection.
 */
export class Lease extends Election {
  readonly #connect: () => Promise<Connection>
  /** The connection that no query uses: one at most. */
  #idle: Connection | undefined
  #notified = new AbortController()

  constructor(connect: string | (() => Promise<Connection>), name: string, options?: Options) {
    super(name, options)
    this.#connect = typeof connect === 'string' ? () => openConnection(connect) : connect
  }

  protected async campaign(term: Term): Promise<number> {
    this.#notified = new AbortController()
    const query = 'SELECT token FROM fencegate.acquire($1, $2, make_interval(secs => $3))'
    const [rows, sent] = await this.#ask(query, [this.name, term.identity, this.ttl / 1000], this.ttl)
    if (rows.length > 0) {
      term.token = BigInt(rows[0].token)
      term.deadline = sent + this.ttl
      return 0
    }
    const rest = 'SELECT extract(epoch FROM expires - clock_timestamp())::float8 AS rest FROM fencegate.leader($1)'
    const [leaders] = await this.#ask(rest, [this.name], this.ttl)
    return leaders.length > 0 ? Math.max(10, leaders[0].rest * 1000 + 5) : 100
  }

  protected override async pause(time: number, signal?: AbortSignal): Promise<void> {
    if (!this.#idle?.on) return super.pause(time, signal)
    const woken = AbortSignal.any([this.#notified.signal, ...(signal ? [signal] : [])])
    await sleep(Math.min(time, LONG), undefined, { signal: woken }).catch(() => signal?.throwIfAborted())
  }

  protected async renew(term: Term, limit: number): Promise<number> {
    const query = 'SELECT fencegate.renew($1, $2, make_interval(secs => $3))'
    return (await this.#ask(query, [this.name, String(term.token), this.ttl / 1000], limit))[1]
  }

  protected async leave(term: Term, limit: number): Promise<void> {
    // By the holder's name: the answer that had the token may be lost.
    const query = 'SELECT fencegate.release($1, token) FROM fencegate.leader($1) WHERE holder = $2'
    try {
      await this.#ask(query, [this.name, term.identity], limit)
    } finally {
      const connection = this.#idle
      this.#idle = undefined
      close(connection)
    }
  }

  /** The rows, and when the answered query was sent. */
  #ask(query: string, values: unknown[], limit: number): Promise<[any[], number]> {
    const call = async (): Promise<[any[], number]> => {
      // A query that is silent keeps its connection, so the next attempt opens another.
      let connection = this.#idle
      this.#idle = undefined
      try {
        connection ??= await this.#open()
        const sent = now()
        const { rows } = await connection.query(query, values)
        if (this.#idle) close(connection)
        else this.#idle = connection
        return [rows, sent]
      } catch (error: any) {
        close(connection)
        if (error?.code === 'LF001') throw new Gone()
        if (SQLSTATE.test(error?.code) && !TRANSIENT.test(error.code))
          throw new CoordinatorError(error.message, { cause: error })
        throw error
      }
    }
    return ask(call, limit, this.attempt)
  }

  async #open(): Promise<Connection> {
    const connection = await this.#connect()
    try {
      await connection.query(`${SETTINGS}; LISTEN fencegate_lease`)
      connection.on?.('notification', ({ payload }) => {
        if (payload === this.name) this.#notified.abort()
      })
      return connection
    } catch (error) {
      close(connection)
      throw error
    }
  }
}

export function close(connection: Connection | undefined): void {
  connection?.end().catch(() => {})
}

/** A connection to the first host of the URL that answers and is a primary, with the installed driver. */
export async function openConnection(url: string): Promise<Connection> {
  const [, start, hosts, rest] = /^([a-z]+:\/\/(?:[^@/]*@)?)([^/?]*)(.*)$/.exec(url) ?? [url, url, '', '']
  let failure: unknown
  for (const host of hosts.split(',')) {
    let connection: Connection | undefined
    try {
      connection = await connectTo(start + host + rest)
      const { rows } = await connection.query('SELECT pg_is_in_recovery() AS is_standby')
      if (!rows[0].is_standby) return connection
      failure = new Error(`${host} is a standby`)
    } catch (error) {
      failure = error
    }
    close(connection)
  }
  throw failure
}

async function connectTo(url: string): Promise<Connection> {
  const driver = await load('pg')
  if (driver) {
    const client = new driver.Client({ connectionString: url, connectionTimeoutMillis: CONNECT })
    client.on('error', () => {}) // The query reports the error, too.
    await client.connect()
    return client
  }
  const postgres = await load('postgres')
  if (!postgres) throw new CoordinatorError('install pg or postgres')
  const sql = postgres(url, { max: 1, connect_timeout: CONNECT / 1000, onnotice: () => {} })
  return {
    query: async (text, values) => ({ rows: values ? await sql.unsafe(text, values) : await sql.unsafe(text).simple() }),
    end: () => sql.end({ timeout: 0 }),
  }
}

async function load(name: string): Promise<any> {
  try {
    const module = await import(name)
    return module.default ?? module
  } catch (error: any) {
    if (/MODULE_NOT_FOUND$/.test(error?.code)) return undefined
    throw error
  }
}
