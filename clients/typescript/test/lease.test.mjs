// Leases in PostgreSQL.

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { LeadershipLost, Lease, NotLeader, now, runAsLeader } from 'fencegate'
import pg from 'pg'
import postgresJs from 'postgres'
import { BINARY, exitCode, freePort, newName, Postgres, Proxy, waitUntil } from './servers.mjs'

let postgres, proxy, url
before(async () => {
  postgres = await Postgres.start()
  proxy = await Proxy.start(postgres)
  url = postgres.url()
})
after(() => [proxy, postgres].forEach((server) => server.kill()))

async function withPg() {
  const client = new pg.Client(url)
  client.on('error', () => {})
  await client.connect()
  return client
}

async function withPostgresJs() {
  const sql = postgresJs(url, { max: 1 })
  return { query: async (text, values) => ({ rows: await sql.unsafe(text, values) }), end: () => sql.end({ timeout: 0 }) }
}

/** Whether another candidate can take the lease, which it then releases. */
async function isFree(name) {
  const other = new Lease(url, name)
  const isFree = await other.acquire({ timeout: 0 })
  await other.release()
  return isFree
}

test('a release wakes a candidate', async () => {
  const name = newName()
  const [first, second] = [new Lease(url, name, { ttl: 3_600_000 }), new Lease(url, name, { ttl: 3_600_000 })]
  await first.acquire()
  const waiting = second.acquire()
  const looks = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle' AND query LIKE '%AS rest FROM%'"
  await waitUntil('the candidate has looked', async () => (await postgres.sql(looks)) !== '0')
  await first.release()
  // It would look again after a minute.
  await waitUntil('the candidate leads', () => !second.lost.aborted)
  await waiting
  await second.release()
})

for (const [driver, connect] of [['pg', withPg], ['postgres.js', withPostgresJs], ['a URL', () => url]]) {
  const leaseOf = (name, options) => new Lease(driver === 'a URL' ? url : connect, name, options)

  test(`one leads, and the next has a higher token: ${driver}`, async () => {
    const name = newName()
    const lease = leaseOf(name)
    assert.throws(() => lease.token, NotLeader)
    assert(lease.lost.aborted)
    assert(await lease.acquire({ timeout: 0 }))
    const { token } = lease
    assert(token > 0n && !lease.lost.aborted)
    const other = new Lease(url, name)
    assert(!(await other.acquire({ timeout: 0 })))
    await lease.release()
    assert(lease.lost.aborted)
    assert.throws(() => lease.token, /released/)
    assert(await other.acquire())
    assert(other.token > token)
    await other.release()
  })

  test(`renewals extend the deadline: ${driver}`, async () => {
    const lease = leaseOf(newName(), { ttl: 2000 })
    await lease.acquire()
    const { token, deadline } = lease
    await waitUntil('the first deadline has passed', () => now() > deadline)
    assert.equal(lease.token, token)
    await lease.release()
  })
}

test('a waiting candidate follows', async () => {
  const name = newName()
  const [first, second] = [new Lease(url, name), new Lease(url, name)]
  await first.acquire()
  assert(!(await second.acquire({ timeout: 300 })))
  const campaign = second.acquire()
  await first.release()
  assert(await campaign)
  await second.release()
})

for (const through of ['server', 'proxy']) {
  test(`loss is announced before the deadline if the server hangs: through the ${through}`, async () => {
    const lease = new Lease(through === 'proxy' ? proxy.url : url, newName(), { ttl: 3000 })
    await lease.acquire()
    let announced
    lease.lost.addEventListener('abort', () => (announced = now()))
    postgres.pause()
    try {
      await waitUntil('the loss is announced', () => announced)
      assert.throws(() => lease.token, /not renewed: no answer/)
      assert(announced < lease.deadline)
    } finally {
      postgres.resume()
    }
    await lease.release()
  })
}

test('there is no token after the deadline, even if no timer runs', async () => {
  const lease = new Lease(url, newName(), { ttl: 2000 })
  await lease.acquire()
  while (now() < lease.deadline - 100); // Blocks the event loop.
  assert(!lease.lost.aborted)
  assert.throws(() => lease.token, NotLeader)
  await lease.release()
})

test('the deadline counts from the sending', async () => {
  const reached = []
  const slow = async () => {
    const client = await withPg()
    const query = async (text, values) => {
      reached.push(now())
      await client.query('SELECT pg_sleep(0.05)')
      return client.query(text, values)
    }
    return { query, end: () => client.end() }
  }
  const lease = new Lease(slow, newName(), { ttl: 2000 })
  await lease.acquire()
  const first = lease.deadline
  assert(first - lease.ttl <= reached.at(-1))
  await waitUntil('a renewal was answered', () => lease.deadline > first)
  assert(lease.deadline - lease.ttl <= reached.at(-1))
  await lease.release()
})

test('a revoked lease is lost, and the same object leads again', async () => {
  const lease = new Lease(url, newName(), { ttl: 2000 })
  await lease.acquire()
  const { token, deadline, lost } = lease
  await postgres.expire(lease.name)
  await waitUntil('the loss is announced', () => lost.aborted)
  assert(now() < deadline)
  assert.throws(() => lease.token, /revoked/)
  assert(await lease.acquire())
  assert(lease.token > token && lost.aborted && !lease.lost.aborted)
  await lease.release()
})

test('a hung connection is replaced', async () => {
  let hung
  const connect = async () => {
    const client = await withPg()
    hung ??= client.processID
    return client
  }
  const lease = new Lease(connect, newName(), { ttl: 4000 })
  await lease.acquire()
  const { token, deadline } = lease
  process.kill(hung, 'SIGSTOP')
  try {
    await waitUntil('the first deadline has passed', () => now() > deadline)
    assert.equal(lease.token, token)
  } finally {
    process.kill(hung, 'SIGCONT')
  }
  await lease.release()
})

test('a closed connection is replaced', async () => {
  const lease = new Lease(url, newName(), { ttl: 2000 })
  await lease.acquire()
  const { deadline } = lease
  await postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")
  await waitUntil('the first deadline has passed', () => now() > deadline)
  assert(lease.token)
  await lease.release()
})

test('the next host of the URL is used', async () => {
  const hosts = `127.0.0.1:${await freePort()},127.0.0.1:${postgres.port}`
  const lease = new Lease(`postgres://app@${hosts}/app`, newName())
  await lease.acquire()
  assert(lease.token)
  await lease.release()
})

test('a refusal is an error at once, and silence after a TTL', async () => {
  await postgres.sql('CREATE ROLE stranger LOGIN')
  const refused = new Lease(postgres.url('stranger'), newName()).acquire()
  await assert.rejects(refused, { name: 'CoordinatorError', message: /permission denied/ })
  const nobody = new Lease(`postgres://app@127.0.0.1:${await freePort()}/app`, newName(), { ttl: 2000 })
  await assert.rejects(nobody.acquire(), { name: 'CoordinatorUnavailable', message: /REFUSED/ })
})

test('timings without room for a retry are rejected', () => {
  for (const options of [{ ttl: 10 }, { ttl: 1e9 }, { ttl: 9000, renewEvery: 5000 }, { ttl: 9000, renewEvery: 10 }, { ttl: NaN }])
    assert.throws(() => new Lease(url, 'any', options), RangeError)
})

test('candidates with one name have different tokens', async () => {
  const name = newName()
  const first = new Lease(url, name, { holder: 'node' })
  await first.acquire()
  assert(!(await new Lease(url, name, { holder: 'node' }).acquire({ timeout: 0 })))
  await first.release()
})

test('fencegate lead waits for the lease', async () => {
  const lease = new Lease(url, newName())
  await lease.acquire()
  const lead = ['lead', '--no-wait', '--coordinator', url, '--election', lease.name, '--', 'true']
  assert.equal(await exitCode(BINARY, ...lead), 73)
  await lease.release()
  assert.equal(await exitCode(BINARY, ...lead), 0)
})

test('an aborted campaign withdraws', async () => {
  const name = newName()
  const [first, second] = [new Lease(url, name), new Lease(url, name)]
  await first.acquire()
  const abort = new AbortController()
  const campaign = second.acquire({ signal: abort.signal })
  await sleep(0)
  abort.abort(new Error('stopped'))
  await assert.rejects(campaign, /stopped/)
  await first.release()
  assert(second.lost.aborted)
  assert(await isFree(name))
})

test('runAsLeader releases after the work', async () => {
  const lease = new Lease(url, newName())
  assert(await runAsLeader(lease, (lease) => lease.token > 0n))
  assert(lease.lost.aborted && (await isFree(lease.name)))
  await assert.rejects(runAsLeader(lease, () => Promise.reject(new Error('of the work'))), /of the work/)
  assert(await isFree(lease.name))
})

test('runAsLeader aborts the signal, and reports the loss instead of the result', async () => {
  const lease = new Lease(url, newName(), { ttl: 2000 })
  let wasAborted = false
  const work = async (lease, lost) => {
    await postgres.expire(lease.name)
    await sleep(20_000, undefined, { signal: lost }).catch(() => (wasAborted = true))
    return 'done'
  }
  await assert.rejects(runAsLeader(lease, work), (error) => error instanceof LeadershipLost && /revoked/.test(error.message))
  assert(wasAborted)
})
