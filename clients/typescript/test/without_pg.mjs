// A lease by URL, where only postgres.js is installed.

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { createRequire } from 'node:module'
import { Lease, now } from 'fencegate'
import { freePort, newName, Postgres, waitUntil } from './servers.mjs'

let postgres
before(async () => (postgres = await Postgres.start()))
after(() => postgres.kill())

for (const [format, Kind] of [['ESM', Lease], ['CommonJS', createRequire(import.meta.url)('fencegate').Lease]]) {
  test(`a lease with postgres.js: ${format}`, async () => {
    await assert.rejects(import('pg'))
    const hosts = `127.0.0.1:${await freePort()},127.0.0.1:${postgres.port}`
    const lease = new Kind(`postgres://app@${hosts}/app`, newName(), { ttl: 2000 })
    await lease.acquire()
    const { token, deadline } = lease
    await waitUntil('the first deadline has passed', () => now() > deadline)
    assert.equal(lease.token, token)
    await lease.release()
  })
}
