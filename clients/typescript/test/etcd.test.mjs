// Elections on etcd.

import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { after, before, test } from 'node:test'
import { EtcdElection, NotLeader, now } from 'fencegate'
import { BINARY, environment, Etcd, exitCode, freePort, newName, waitUntil } from './servers.mjs'

let etcd
before(async () => (etcd = await Etcd.start()))
after(() => etcd.kill())
const nameOf = () => `/${newName()}/leader`
const keys = (name) => etcd.ctl('get', '--prefix', name + '/', '--keys-only')

test('one leads, and the next has a higher token', async () => {
  const name = nameOf()
  const [first, second] = [new EtcdElection(etcd.url, name), new EtcdElection(etcd.url, name)]
  assert(await first.acquire({ timeout: 0 }))
  const { token } = first
  const shown = await etcd.ctl('get', '--prefix', name + '/', '-w', 'fields')
  assert(shown.includes(`"CreateRevision" : ${token}\n`) && shown.includes(`"Value" : "${first.holder}"`), shown)
  assert(!(await second.acquire({ timeout: 0 })))
  assert.equal((await keys(name)).trim().split(/\s+/).length, 1)
  await first.release()
  assert.throws(() => first.token, NotLeader)
  assert(await second.acquire())
  assert(second.token > token)
  await second.release()
  assert.equal(await keys(name), '')
})

test('fencegate lead takes part', async () => {
  const election = new EtcdElection(etcd.url, nameOf())
  await election.acquire()
  const lead = ['lead', '--no-wait', '--etcd', etcd.url, '--election', election.name, '--']
  assert.equal(await exitCode(BINARY, ...lead, 'true'), 73)
  await election.release()
  const process = spawn(BINARY, [...lead, 'cat'], { env: environment, stdio: ['pipe', 'ignore', 'ignore'] })
  await waitUntil('fencegate lead leads', () => keys(election.name))
  assert(!(await election.acquire({ timeout: 0 })))
  process.stdin.end()
  assert(await election.acquire())
  await election.release()
})

test('renewals extend the deadline, and waiting candidates keep their places', async () => {
  const name = nameOf()
  const [first, second] = [1, 2].map(() => new EtcdElection(etcd.url, name, { ttl: 2000 }))
  await first.acquire()
  const { token, deadline } = first
  const campaign = second.acquire()
  await waitUntil('the second waits', async () => (await keys(name)).trim().split(/\s+/).length === 2)
  const waiting = await keys(name)
  await waitUntil('two terms have passed', () => now() > deadline + 2000)
  assert.equal(first.token, token)
  assert.equal(await keys(name), waiting)
  await first.release()
  assert(await campaign)
  await second.release()
})

test('an aborted campaign withdraws', async () => {
  const name = nameOf()
  const [first, second] = [new EtcdElection(etcd.url, name), new EtcdElection(etcd.url, name)]
  await first.acquire()
  const abort = new AbortController()
  const campaign = second.acquire({ signal: abort.signal })
  await waitUntil('the second waits', async () => (await keys(name)).trim().split(/\s+/).length === 2)
  abort.abort(new Error('stopped'))
  await assert.rejects(campaign, /stopped/)
  assert.equal((await keys(name)).trim().split(/\s+/).length, 1)
  await first.release()
})

test('loss is announced before the deadline if etcd hangs', async () => {
  const election = new EtcdElection(etcd.url, nameOf(), { ttl: 3000 })
  await election.acquire()
  let announced
  election.lost.addEventListener('abort', () => (announced = now()))
  etcd.pause()
  try {
    await waitUntil('the loss is announced', () => announced)
    assert.throws(() => election.token, NotLeader)
    assert(announced < election.deadline)
  } finally {
    etcd.resume()
  }
  await election.release()
})

test('a revoked lease is lost, and the same object leads again', async () => {
  const election = new EtcdElection(etcd.url, nameOf(), { ttl: 2000 })
  await election.acquire()
  const { lost } = election
  await etcd.ctl('lease', 'revoke', (await keys(election.name)).trim().split('/').at(-1))
  await waitUntil('the loss is announced', () => lost.aborted)
  assert.throws(() => election.token, /revoked/)
  assert(await election.acquire())
  await election.release()
})

test('nested elections are rejected', async () => {
  const election = new EtcdElection(etcd.url, nameOf())
  await election.acquire()
  for (const nested of [election.name + '/inner', election.name.replace(/\/leader$/, '')])
    await assert.rejects(new EtcdElection(etcd.url, nested).acquire(), /nested/)
  await election.release()
})

test('another member is asked', async () => {
  const members = [`http://127.0.0.1:${await freePort()}`, etcd.url]
  const election = new EtcdElection(members, nameOf(), { ttl: 2000 })
  await election.acquire()
  const { deadline } = election
  await waitUntil('the first deadline has passed', () => now() > deadline)
  assert(election.token)
  await election.release()
})

test('fractions of a second and bad names are rejected', () => {
  assert.throws(() => new EtcdElection(etcd.url, '/a', { ttl: 2500 }), RangeError)
  for (const name of ['', '/a/', '/a//b']) assert.throws(() => new EtcdElection(etcd.url, name), RangeError)
})
