// node-postgres' pool.

const { Pool } = require('pg')
const { address, run, takeOver, versionOf } = require('./steps')

const write = 'INSERT INTO jobs SELECT count(*) FROM jobs RETURNING id'
const read = "SELECT quote_literal(current_setting('lease.fence')) || ' ' || pg_backend_pid()"

let token
const currentToken = () => token

const pool = new Pool({ ...address, max: 1 })
// The query that meets the end of a connection throws it, too. Without listeners it would end the process.
pool.on('error', () => {})
pool.on('connect', (client) => client.on('error', () => {}))

async function withClient(work) {
  const client = await pool.connect()
  try {
    await client.query(`SET lease.fence = '${currentToken()}'`)
    return await work(client)
  } finally {
    // Clients that are taken in another way find no token. A broken client is removed from the pool.
    const tidied = client.query('ROLLBACK; RESET lease.fence')
    await tidied.then(() => client.release(), (error) => client.release(error))
  }
}

const value = (result) => Object.values(result.rows[0])[0]

// Takes these steps in a transaction, SQL or functions, and returns what the last one reads, or the SQLSTATE.
async function visit(visitor, ...actions) {
  token = visitor
  const work = async (client) => {
    let result
    await client.query('BEGIN')
    for (const action of actions) result = await (typeof action === 'string' ? client.query(action) : action())
    await client.query('COMMIT')
    return value(result)
  }
  return withClient(work).catch((error) => error.code)
}

run({
  version: () => versionOf('pg-pool'),
  first: () => visit('1', write, read),
  newer: () => visit('2', write, read),
  // By another way, behind somebody with a token.
  none: async () => value(await pool.query(read)),
  refused: () => visit('', write),
  rolled_back: () => visit('2', write, 'ROLLBACK', read),
  cut_off: () => visit('2', write, () => takeOver(3), read),
  after: () => visit('3', write, read),
})
