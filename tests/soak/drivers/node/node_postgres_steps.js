// node-postgres, with pg-copy-streams and pg-cursor.

const { Client } = require('pg')
const copy = require('pg-copy-streams')
const Cursor = require('pg-cursor')
const { once } = require('node:events')
const { text } = require('node:stream/consumers')
const { pipeline } = require('node:stream/promises')
const { address, errorOf, inAnotherSession, large, onceAsleep, numbersFrom, run, takeOver, versionOf } = require('./steps')

let client

async function newClient(token, more) {
  const client = new Client({ ...address, options: `-c lease.fence=${token}`, ...more })
  // The end of the connection is reported here and by the current query.
  client.on('error', () => {})
  await client.connect()
  return client
}

async function connect(token) {
  client = await newClient(token)
}

async function value(sql) {
  return Object.values((await client.query(sql)).rows[0])[0]
}

const sum = (lines) => lines.reduce((total, line) => total + Number(line), 0)

async function shown(promise) {
  const { constructor, code, severity, detail } = await errorOf(promise)
  return `pg.${constructor.name} ${code} ${severity} ${detail}`
}

async function insertPrepared(numbers) {
  for (const number of numbers) {
    await client.query({ name: 'insert', text: 'INSERT INTO jobs VALUES ($1)', values: [number] })
  }
}

// Sends a pipeline, which is an option of a client.
async function insertAsABatch(numbers) {
  const pipelined = await newClient(1, { pipeline: true })
  const inserts = numbers.map((number) => pipelined.query('INSERT INTO jobs VALUES ($1)', [number]))
  await Promise.all(inserts).finally(() => pipelined.end())
}

function copyIn(numbers) {
  return pipeline(
    numbers.map((number) => `${number}\n`),
    client.query(copy.from('COPY jobs (id) FROM STDIN'))
  )
}

run({
  version: () => versionOf('pg'),

  async token() {
    await connect(1)
    return value("SELECT current_setting('lease.fence')")
  },

  async writes() {
    await client.query("INSERT INTO jobs VALUES (1, 'one')")
    return value('SELECT payload FROM jobs WHERE id = 1')
  },

  async prepares() {
    await insertPrepared(numbersFrom(100, 10))
    return value('SELECT sum(id) FROM jobs WHERE id BETWEEN 100 AND 109')
  },

  async batches() {
    await insertAsABatch(numbersFrom(200, 10))
    return value('SELECT sum(id) FROM jobs WHERE id BETWEEN 200 AND 209')
  },

  async copies() {
    await copyIn(numbersFrom(1000, 1000))
    const query = 'COPY (SELECT id FROM jobs WHERE id BETWEEN 1000 AND 1999) TO STDOUT'
    return sum((await text(client.query(copy.to(query)))).trim().split('\n'))
  },

  async scrolls() {
    const cursor = client.query(new Cursor('SELECT id FROM jobs WHERE id BETWEEN 1000 AND 1999'))
    let total = 0
    for (let rows; (rows = await cursor.read(70)).length > 0; ) total += sum(rows.map((row) => row.id))
    return total
  },

  async carries_large_values() {
    await client.query('INSERT INTO jobs VALUES (2, $1)', [large])
    return (await value('SELECT payload FROM jobs WHERE id = 2')) === large ? 'same' : 'another'
  },

  async listens() {
    const notified = once(client, 'notification')
    await client.query('LISTEN ticks')
    await inAnotherSession("NOTIFY ticks, 'tick'")
    return (await notified)[0].payload
  },

  async cancels() {
    const query = new Client.Query('SELECT pg_sleep(600)')
    const sleeping = new Promise((resolve, reject) => query.on('end', resolve).on('error', reject))
    client.query(query)
    onceAsleep(() => new Client(address).cancel(client, query))
    const error = await errorOf(sleeping)
    return value(`SELECT '${error.code === '57014' ? 'cancelled' : error}'`)
  },

  async is_refused() {
    await takeOver(2)
    return shown(client.query('INSERT INTO jobs VALUES (3)'))
  },

  async refusals() {
    const codes = []
    for (const way of [insertPrepared, insertAsABatch, copyIn]) {
      codes.push((await errorOf(way(numbersFrom(300, 10)))).code)
    }
    return codes.join(' ')
  },

  async aborts() {
    await client.query('BEGIN')
    await errorOf(client.query('INSERT INTO jobs VALUES (3)'))
    const error = await errorOf(client.query("SELECT 'refused'"))
    await client.query('ROLLBACK')
    return value(`SELECT '${error.code === '25P02' ? 'on' : error}'`)
  },

  async goes_on() {
    await client.query('SET lease.fence = 2')
    await client.query("INSERT INTO jobs VALUES (3, 'three')")
    return value('SELECT payload FROM jobs WHERE id = 3')
  },

  async is_cut_off() {
    await client.query('BEGIN')
    await client.query('INSERT INTO jobs VALUES (4)')
    await takeOver(3)
    return shown(client.query("SELECT 'on'"))
  },

  async is_interrupted() {
    await connect(3)
    await client.query('BEGIN')
    await client.query('INSERT INTO jobs VALUES (4)')
    onceAsleep(() => takeOver(4))
    return shown(client.query('SELECT pg_sleep(600)'))
  },

  async starts_again() {
    await connect(4)
    await client.query("INSERT INTO jobs VALUES (4, 'four')")
    return value('SELECT payload FROM jobs WHERE id = 4')
  },
})
