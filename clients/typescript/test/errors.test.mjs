// The proxy's errors as classes.

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import {
  CoordinatorError, CoordinatorUnavailable, fenceError, FenceUnavailable, fencingErrors, InvalidToken, isRetryable, LeadershipLost, MissingToken, StaleToken, UnissuedToken,
  UnverifiableStatement,
} from 'fencegate'
import pg from 'pg'
import postgresJs from 'postgres'
import { nextToken, Postgres, Proxy } from './servers.mjs'

const WRITE = "INSERT INTO jobs (run_by) VALUES ('errors')"
let postgres, proxy
before(async () => {
  postgres = await Postgres.start()
  proxy = await Proxy.start(postgres)
})
after(() => [proxy, postgres].forEach((server) => server.kill()))

const drivers = {
  async 'node-postgres'(work) {
    const client = new pg.Client(proxy.url)
    await client.connect()
    await work((text) => client.query(text))
    await client.end()
  },
  async 'postgres.js'(work) {
    const sql = postgresJs(proxy.url, { max: 1 })
    await work((text) => sql.unsafe(text))
    await sql.end()
  },
}

for (const [driver, withDriver] of Object.entries(drivers)) {
  test(`each code has a class: ${driver}`, () =>
    withDriver(async (query) => {
      const [older, newer] = [nextToken(), nextToken()]
      await query(`SET lease.fence = ${newer}`)
      await query(WRITE)
      const cases = [
        [`SET lease.fence = ${older}`, WRITE, StaleToken],
        ["SET lease.fence = ''", WRITE, MissingToken],
        ['SELECT 1', "SET lease.fence = 'x'", InvalidToken],
        ['SELECT 1', `DO $$ BEGIN ${WRITE}; END $$`, UnverifiableStatement],
        ['SET lease.fence = 999999', "UPDATE ticks SET run_by = 'errors'", UnissuedToken],
      ]
      for (const [setting, statement, kind] of cases) {
        await query(setting)
        await assert.rejects(fencingErrors(() => query(statement)), (error) => {
          assert(error instanceof kind, String(error))
          assert(error.message && error.hint && error.name === kind.name && error.cause.code === error.code)
          assert(!isRetryable(error) && !isRetryable(error.cause))
          return true
        })
      }
    }))

  test(`other errors pass unchanged: ${driver}`, () =>
    withDriver((query) => assert.rejects(fencingErrors(() => query('SELECT 1 / 0')), { code: '22012' })))
}

const driverError = (code, hint = '') => Object.assign(new Error('no'), { code, hint })

test('which errors are retryable', () => {
  assert(fenceError(driverError('LF006')) instanceof FenceUnavailable)
  for (const code of ['LF006', '40001', '40P01', '53300', '57P03'])
    assert(isRetryable(driverError(code)), code)
  // After 57P01 and lost connections, a COMMIT may have taken effect.
  const lost = ['57P01', '08006', '40003', 'ECONNRESET', 'CONNECTION_CLOSED']
  for (const code of ['LF001', 'LF002', 'LF003', 'LF004', 'LF005', '57014', '42501', '23505', ...lost])
    assert(!isRetryable(driverError(code)), code)
  assert(isRetryable(driverError('LF004', 'The token is now in force. Nothing was written: roll back, and retry.')))
  assert(!isRetryable(driverError('LF006', 'Retrying will not help. Run the GRANT as a superuser.')))
  assert(isRetryable(new CoordinatorUnavailable()) && !isRetryable(new CoordinatorError()))
  assert(!isRetryable(new LeadershipLost('lost', { cause: driverError('40001') })))
  assert(!isRetryable(undefined) && !isRetryable(new Error()))
})

test('the error in a cause is found', () => {
  assert(fenceError(new Error('outer', { cause: driverError('LF001') })) instanceof StaleToken)
  assert.equal(fenceError(new Error()), undefined)
})
