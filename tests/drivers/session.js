// As session.py, for node-postgres.

const readline = require('node:readline')
const { Client } = require('pg')

let client

const verbs = {
  async connect(token) {
    const port = Number(process.argv[2])
    const options = `-c lease.fence=${token}`
    client = new Client({ host: '127.0.0.1', port, user: 'postgres', database: 'postgres', options })
    // The end of the connection is reported here as well as by the query that it meets.
    client.on('error', () => {})
    await client.connect()
    return 'connected'
  },
  async basics() {
    for (let number = 0; number < 20; number++) {
      await client.query({ name: 'insert', text: 'INSERT INTO jobs VALUES ($1)', values: [number] })
    }
    await client.query('BEGIN')
    for (let number = 20; number < 30; number++) {
      await client.query('INSERT INTO jobs VALUES ($1)', [number])
    }
    await client.query('COMMIT')
    return (await client.query('SELECT count(*) FROM jobs')).rows[0].count
  },
  async run(sql) {
    const result = await client.query(sql)
    return result.fields?.length ? Object.values(result.rows[0])[0] : result.command
  },
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [verb, ...rest] = line.split(' ')
    const answer = await verbs[verb](rest.join(' ')).catch(e => `${e.code} ${e.severity} ${e.detail}`)
    console.log(String(answer))
  }
  process.exit()
}

main()
