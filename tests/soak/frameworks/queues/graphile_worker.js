// graphile-worker: adds a job and processes all jobs, with the token in QUEUE_TOKEN.
const { EventEmitter } = require('events')
const { Pool } = require('pg')
const { Logger, makeWorkerUtils, runMigrations, runOnce } = require('graphile-worker')
const { say, connection } = require('./queue.js')

async function main() {
  const pgPool = new Pool(connection())
  pgPool.on('error', () => {})
  pgPool.on('connect', (client) => client.on('error', () => {}))
  const logger = new Logger(() => () => {})
  if (process.env.QUEUE_MIGRATES) await runMigrations({ pgPool, logger })
  const utils = await makeWorkerUtils({ pgPool, logger })
  await utils.addJob('mail', {}).then(() => say('added'), (error) => say('not added', error.code))
  const events = new EventEmitter()
  events.on('worker:getJob:error', ({ error }) => say('getJob', error.code))
  await runOnce({ pgPool, logger, events, taskList: { mail: async () => say('worked') } })
  say('runOnce resolved')
  await utils.release()
}

main().then(() => process.exit(0), (error) => { say('failed', error.code, error.message); process.exit(1) })
