// What the programs of this folder share: where the proxy is, who takes over, and how steps are run and reported.

const { Client } = require('pg')
const { join } = require('node:path')

const address = {
  host: process.env.PGHOST,
  port: Number(process.env.PGPORT),
  user: process.env.PGUSER,
  database: process.env.PGDATABASE,
}

const large = '0123456789abcdef'.repeat((4 * 1024 * 1024) / 16)

const numbersFrom = (first, count) => Array.from({ length: count }, (_, index) => first + index)

// By its path: not every package exports it.
const versionOf = (name) => require(join(process.env.NODE_PATH, name, 'package.json')).version

// In the order in which they are written.
async function run(steps) {
  for (const [name, step] of Object.entries(steps)) console.log(`${name}: ${await step()}`)
  process.exit()
}

// Another leader, with that token, writes.
async function takeOver(token) {
  await inAnotherSession(`SET lease.fence = ${token}; DELETE FROM jobs WHERE id <> 4`)
}

async function inAnotherSession(sql) {
  const client = new Client(address)
  await client.connect()
  await client.query(sql)
  await client.end()
}

async function onceAsleep(action) {
  await inAnotherSession('SELECT until_asleep()')
  await action()
}

// The error that it ends with.
async function errorOf(promise) {
  try {
    await promise
  } catch (error) {
    return error
  }
  throw new Error('an error was expected')
}

module.exports = { address, large, numbersFrom, versionOf, run, takeOver, inAnotherSession, onceAsleep, errorOf }
