// Shared by the programs of this folder: the address of the proxy, takeovers, and running and reporting steps.

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

// By path, because not every package exports its package.json.
const versionOf = (name) => require(join(process.env.NODE_PATH, name, 'package.json')).version

// Runs the steps in the order of their definition.
async function run(steps) {
  for (const [name, step] of Object.entries(steps)) console.log(`${name}: ${await step()}`)
  process.exit()
}

// Another leader writes with that token.
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

// Returns the error of the promise.
async function errorOf(promise) {
  try {
    await promise
  } catch (error) {
    return error
  }
  throw new Error('an error was expected')
}

module.exports = { address, large, numbersFrom, versionOf, run, takeOver, inAnotherSession, onceAsleep, errorOf }
