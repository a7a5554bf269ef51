// node-postgres' pool through a promotion. Its workers write before, during and after it.

const { Pool } = require('pg')
const { address } = require('./steps')

const workers = 8
const writes = 20

const pool = new Pool({ ...address, options: '-c lease.fence=1', max: workers })
// The query during which a connection ends throws the error too. Without listeners the error would end the process.
pool.on('error', () => {})
pool.on('connect', (client) => client.on('error', () => {}))

const lines = []
let number = 0
let isPromoted = false

async function write() {
  const mine = (number += 1)
  try {
    await pool.query('INSERT INTO entries (writer, token, number) VALUES (1, 1, $1)', [mine])
  } catch (error) {
    // Socket errors have names such as ECONNRESET.
    const code = /^[0-9A-Z]{5}$/.test(error.code) ? error.code : 'connection lost'
    lines.push(code.startsWith('LF') ? `error ${code}: ${error.message}` : `error ${code}`)
    return 0
  }
  lines.push(`committed ${mine}`)
  return 1
}

async function writeSome(hasEnough) {
  await Promise.all(Array.from({ length: workers }, async () => {
    let written = 0
    while (!hasEnough(written)) written += await write()
  }))
}

async function run() {
  await writeSome((written) => written >= writes)
  console.log('ready')
  process.stdin.once('data', () => { isPromoted = true })
  await writeSome(() => isPromoted)
  await writeSome((written) => written >= writes)
  process.stdin.destroy()
  process.stdout.write(`${lines.join('\n')}\n`, () => process.exit())
}

run()
