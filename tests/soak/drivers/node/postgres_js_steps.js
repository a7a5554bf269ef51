// postgres.js.

const postgres = require('postgres')
const { text } = require('node:stream/consumers')
const { pipeline } = require('node:stream/promises')
const { address, errorOf, inAnotherSession, large, onceAsleep, numbersFrom, run, takeOver, versionOf } = require('./steps')

let sql

function connect(token) {
  sql = postgres({ ...address, max: 1, connection: { 'lease.fence': token }, onnotice: () => {} })
}

async function value(query) {
  return Object.values((await query)[0])[0]
}

const sum = (lines) => lines.reduce((total, line) => total + Number(line), 0)

async function shown(promise) {
  const { constructor, code, severity, detail } = await errorOf(promise)
  return `postgres.${constructor.name} ${code} ${severity} ${detail}`
}

async function insertPrepared(numbers) {
  for (const number of numbers) await sql`INSERT INTO jobs VALUES (${number})`
}

// Queries of a transaction are sent as a pipeline unless the program waits for each.
function insertAsABatch(numbers) {
  return sql.begin((sql) => numbers.map((number) => sql`INSERT INTO jobs VALUES (${number})`))
}

async function copyIn(numbers) {
  const lines = numbers.map((number) => `${number}\n`)
  await pipeline(lines, await sql`COPY jobs (id) FROM STDIN`.writable())
}

// Returns the error of a step in a transaction that has written.
async function cutOffAt(step) {
  let result
  const transaction = sql.begin(async (sql) => {
    await sql`INSERT INTO jobs VALUES (4)`
    result = await shown(step(sql))
  })
  // The error of the transaction itself is that of the COMMIT or ROLLBACK, which has no connection.
  const { code } = await errorOf(transaction)
  return code === 'CONNECTION_CLOSED' ? result : `another error: ${code}`
}

run({
  version: () => versionOf('postgres'),

  token() {
    connect(1)
    return value(sql`SELECT current_setting('lease.fence')`)
  },

  async writes() {
    await sql`INSERT INTO jobs VALUES (1, 'one')`
    return value(sql`SELECT payload FROM jobs WHERE id = 1`)
  },

  async prepares() {
    await insertPrepared(numbersFrom(100, 10))
    return value(sql`SELECT sum(id) FROM jobs WHERE id BETWEEN 100 AND 109`)
  },

  async batches() {
    await insertAsABatch(numbersFrom(200, 10))
    return value(sql`SELECT sum(id) FROM jobs WHERE id BETWEEN 200 AND 209`)
  },

  async copies() {
    await copyIn(numbersFrom(1000, 1000))
    const query = sql`COPY (SELECT id FROM jobs WHERE id BETWEEN 1000 AND 1999) TO STDOUT`
    return sum((await text(await query.readable())).trim().split('\n'))
  },

  async scrolls() {
    let total = 0
    const query = sql`SELECT id FROM jobs WHERE id BETWEEN 1000 AND 1999`
    for await (const rows of query.cursor(70)) total += sum(rows.map((row) => row.id))
    return total
  },

  async carries_large_values() {
    await sql`INSERT INTO jobs VALUES (2, ${large})`
    return (await value(sql`SELECT payload FROM jobs WHERE id = 2`)) === large ? 'same' : 'another'
  },

  async listens() {
    const notified = new Promise((resolve) => sql.listen('ticks', resolve, () => sql.notify('ticks', 'tick')))
    return notified
  },

  async cancels() {
    const query = sql`SELECT pg_sleep(600)`.execute()
    onceAsleep(() => query.cancel())
    const error = await errorOf(query)
    return value(sql`SELECT ${error.code === '57014' ? 'cancelled' : String(error)}`)
  },

  async is_refused() {
    await takeOver(2)
    return shown(sql`INSERT INTO jobs VALUES (3)`)
  },

  async refusals() {
    const codes = []
    for (const way of [insertPrepared, insertAsABatch, copyIn]) {
      codes.push((await errorOf(way(numbersFrom(300, 10)))).code)
    }
    return codes.join(' ')
  },

  async aborts() {
    let error
    const transaction = sql.begin(async (sql) => {
      await errorOf(sql`INSERT INTO jobs VALUES (3)`)
      error = await errorOf(sql`SELECT 'refused'`)
    })
    // postgres.js throws the first error of the transaction even if it was caught.
    if ((await errorOf(transaction)).code !== 'LF001') return 'another error'
    return value(sql`SELECT ${error.code === '25P02' ? 'on' : String(error)}`)
  },

  async goes_on() {
    await sql`SET lease.fence = 2`
    await sql`INSERT INTO jobs VALUES (3, 'three')`
    return value(sql`SELECT payload FROM jobs WHERE id = 3`)
  },

  is_cut_off() {
    return cutOffAt(async (sql) => {
      await takeOver(3)
      await sql`SELECT 'on'`
    })
  },

  is_interrupted() {
    connect(3)
    return cutOffAt((sql) => {
      onceAsleep(() => takeOver(4))
      return sql`SELECT pg_sleep(600)`
    })
  },

  async starts_again() {
    connect(4)
    await sql`INSERT INTO jobs VALUES (4, 'four')`
    return value(sql`SELECT payload FROM jobs WHERE id = 4`)
  },
})
