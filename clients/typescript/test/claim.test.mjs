// A new leader claims its resources before the work begins.

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { claim, Election, FenceUnavailable, fencingErrors, LeadershipLost, now, runAsLeader, StaleToken } from 'fencegate'
import pg from 'pg'
import { nextToken, Postgres, Proxy } from './servers.mjs'

let postgres, proxy
before(async () => {
  postgres = await Postgres.start()
  proxy = await Proxy.start(postgres)
})
after(() => [proxy, postgres].forEach((server) => server.kill()))

/** Leads at once, with this token. */
class Issued extends Election {
  isSilent = false

  constructor(issued) {
    super('issued', { ttl: 2000 })
    this.issued = BigInt(issued)
  }

  async campaign(term) {
    term.token = this.issued
    term.deadline = now() + this.ttl
    return 0
  }

  async renew() {
    if (this.isSilent) throw new Error('no answer')
    return now()
  }

  async leave() {}
}

async function holder(token) {
  const client = new pg.Client({ connectionString: proxy.url, options: token && `-c lease.fence=${token}` })
  client.on('error', () => {})
  await client.connect()
  return client
}

test('older holders are gone before the work', async () => {
  const old = await holder(nextToken())
  await old.query('BEGIN')
  await old.query("INSERT INTO jobs (run_by) VALUES ('old')")
  const reader = await holder()
  const read = async () => (await reader.query("SELECT FROM jobs WHERE run_by = 'old'")).rowCount
  const work = async () => {
    assert.equal(await read(), 0)
    await assert.rejects(fencingErrors(() => old.query('COMMIT')), (error) => {
      assert(error instanceof StaleToken && error.outcome === 'rolled_back', String(error))
      return true
    })
    return read()
  }
  assert.equal(await runAsLeader(new Issued(nextToken()), work, { claim: ['jobs'], connect: proxy.url }), 0)
  await reader.end()
})

const fails = () => assert.fail('it works')

test('a stale token ends the campaign', async () => {
  const [older, newer] = [nextToken(), nextToken()]
  const client = await holder(newer)
  await client.query('DELETE FROM jobs WHERE false')
  await client.end()
  const election = new Issued(older)
  await assert.rejects(runAsLeader(election, fails, { claim: ['jobs'], connect: proxy.url }), (error) => {
    assert(error instanceof StaleToken, String(error))
    assert.deepEqual([error.presented, error.highest], [BigInt(older), BigInt(newer)])
    return true
  })
  assert(election.lost.aborted)
})

const refusal = (code, hint = '') => Object.assign(new Error('refused'), { code, hint })

/** Connections on which claims fail with what `next` returns. */
const refusing = (next) => async () => ({
  async query(text) {
    const error = text.includes('claim') && next()
    if (error) throw error
    return { rows: [] }
  },
  async end() {},
})

test('a claim is repeated while the fence is unavailable', async () => {
  const refusals = [refusal('LF006'), refusal('LF004', 'The token is now in force. Nothing was written.')]
  const election = new Issued(nextToken())
  const options = { claim: ['jobs'], connect: refusing(() => refusals.shift()) }
  assert.equal(await runAsLeader(election, () => refusals.length, options), 0)
  const connect = refusing(() => refusal('LF006', 'Retrying will not help.'))
  await assert.rejects(runAsLeader(election, fails, { claim: ['jobs'], connect }), FenceUnavailable)
})

test('a loss ends the claim', async () => {
  for (const connect of [refusing(() => refusal('LF006')), () => new Promise(() => {})]) {
    const election = new Issued(nextToken())
    election.isSilent = true
    await assert.rejects(runAsLeader(election, fails, { claim: ['jobs'], connect }), LeadershipLost)
  }
})

test('a claim needs a leader and a connection', async () => {
  const election = new Issued(nextToken())
  await assert.rejects(claim(election, proxy.url, 'jobs'), { name: 'NotLeader' })
  await assert.rejects(runAsLeader(election, fails, { claim: ['jobs'] }), TypeError)
})
