// Hooks for connection pools: every connection that a pool returns presents the current token, or none.
//
// Must never let a connection keep the token of its previous user. While this process does not lead, the hooks set an empty
// token, and writes to fenced resources fail with LF002. If the pool permits it, the hooks replace connections that have
// sent another token, because the proxy may end sessions that presented an older one.

import { Election, NotLeader } from './election.js'
import { fenceError } from './errors.js'

/** An election, or a function that returns a token, a list such as `scheduler=47, billing=7`, or undefined. */
export type Source = Election | (() => bigint | number | string | undefined)

/** The SET statement for the current token. Contains the value as a literal, which spares the proxy a query to the server. */
export function setFence(source: Source, scope: '' | 'LOCAL ' = ''): string {
  let token: bigint | number | string | undefined
  try {
    token = source instanceof Election ? source.token : source()
  } catch (error) {
    if (!(error instanceof NotLeader)) throw error
  }
  const text = String(token ?? '')
  if (!/^[A-Za-z0-9_./:%=, -]*$/.test(text)) throw new RangeError(`not a fencing token: ${text}`)
  return `SET ${scope}lease.fence = '${text}'`
}

interface PgClient {
  query(text: string): Promise<unknown>
  release(error?: Error | boolean): void
  on(event: 'error', listener: (error: Error) => void): unknown
}
interface PgPool {
  connect: any
  on(event: any, listener: (...values: any[]) => void): unknown
  options: { max?: number }
}

/**
 * Makes a new `Pool` of node-postgres present the token in `pool.connect` and `pool.query`. Replaces connections that were
 * closed or have sent another token. Rolls back a transaction that the previous user left open.
 */
export function fencePool<P extends PgPool>(pool: P, source: Source): P {
  const connect: () => Promise<PgClient> = pool.connect.bind(pool)
  // A query on a closed connection throws this error as well. Without a listener, the error would end the process.
  pool.on('error', () => {})
  pool.on('connect', (client: PgClient) => client.on('error', () => {}))

  const sent = new WeakMap<PgClient, string>()

  const take = async (): Promise<PgClient> => {
    for (let left = pool.options.max ?? 10; ; left--) {
      const client = await connect()
      try {
        const statement = setFence(source)
        if (!statement.endsWith("''")) {
          if ((sent.get(client) ?? statement) !== statement) throw new Error('the connection has sent an earlier token')
          sent.set(client, statement)
        }
        if ((client as any).getTransactionStatus?.() !== 'I') await client.query('ROLLBACK')
        await client.query(statement)
        return client
      } catch (error: any) {
        client.release(error)
        if (left <= 0 || error instanceof RangeError || fenceError(error)) throw error
      }
    }
  }
  pool.connect = (callback?: (error?: Error, client?: PgClient, release?: () => void) => void) => {
    if (!callback) return take()
    take().then(
      (client) => process.nextTick(callback, undefined, client, client.release),
      (error) => process.nextTick(callback, error, undefined, () => {}),
    )
  }
  return pool
}

/** The argument of the function that postgres.js runs in a transaction. */
type Transaction<S> = S extends { begin(options: string, work: (sql: infer T) => any): any } ? T : never

/**
 * Transactions of postgres.js that present the token: `fenceSql(sql, lease).begin(async (sql) => …)`, and single statements:
 * `` fenced`UPDATE …` ``. The token ends with the transaction, so statements of the plain `sql` have none.
 */
export function fenceSql<S extends { begin: any }>(sql: S, source: Source): FencedSql<Transaction<S>> {
  const begin = async <T>(work: (sql: Transaction<S>) => T | Promise<T>): Promise<T> => {
    // If the transaction was cut off, postgres.js rejects with CONNECTION_CLOSED, and only the query has the reason.
    let failure: unknown
    const run = async (transaction: any) => {
      try {
        await transaction.unsafe(setFence(source, 'LOCAL '))
        return await work(transaction)
      } catch (error) {
        failure = error
        throw error
      }
    }
    return sql.begin(run).catch((error: unknown) => Promise.reject(fenceError(failure) ? failure : error))
  }
  const one = (strings: TemplateStringsArray, ...values: any[]) => begin((sql: any) => sql(strings, ...values))
  return Object.assign(one, { begin }) as FencedSql<Transaction<S>>
}

export interface FencedSql<T> {
  (strings: TemplateStringsArray, ...values: any[]): Promise<any[]>
  begin<R>(work: (sql: T) => R | Promise<R>): Promise<R>
}
