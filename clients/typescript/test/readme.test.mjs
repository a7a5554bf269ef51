// README's program runs as it is, except for addresses.

import assert from 'node:assert/strict'
import { readFileSync, rmSync, writeFileSync } from 'node:fs'
import { after, before, test } from 'node:test'
import { Postgres, Proxy } from './servers.mjs'

let postgres, proxy
before(async () => {
  postgres = await Postgres.start()
  proxy = await Proxy.start(postgres)
})
after(() => [proxy, postgres].forEach((server) => server.kill()))

test("README's program writes as the leader", async () => {
  const readme = readFileSync(new URL('../README.md', import.meta.url), 'utf8')
  const block = readme.split('```ts\n')[1].split('```')[0]
  assert(block.split('\n').filter(Boolean).length <= 10)
  const file = new URL('../readme.mjs', import.meta.url) // Beside node_modules. It has no types to strip.
  writeFileSync(file, block.replaceAll('5432', postgres.port).replaceAll('6432', proxy.port))
  await import(file.href).finally(() => rmSync(file))
  assert.match(await postgres.sql('SELECT run_by FROM ticks'), /^.+:\d+:[0-9a-f]{8}$/)
})
