// pg-boss: sends a job and processes it, with the token in QUEUE_TOKEN.
const PgBoss = require('pg-boss')
const { say, connection } = require('./queue.js')

async function main() {
  const boss = new PgBoss(connection())
  boss.on('error', (error) => say('error', error.code))
  await boss.start()
  await boss.createQueue('mail')
  say('sent', (await boss.send('mail', {})) !== null)
  const jobs = await boss.fetch('mail')
  say('fetched', jobs.length)
  for (const job of jobs) await boss.complete('mail', job.id)
  // fetch() reports every error as "no job", but this query does not.
  await boss.getDb().executeSql('UPDATE pgboss.job SET id = id WHERE false').then(() => say('leads'), (error) => say('leads not', error.code))
  await boss.stop({ graceful: false, wait: true })
}

main().then(() => process.exit(0), (error) => { say('failed', error.code, error.message); process.exit(1) })
