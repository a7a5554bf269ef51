// Shared by the programs of the queues.
exports.say = (...words) => console.log(words.join(' '))

exports.connection = () => {
  const { PGHOST, PGPORT, PGUSER, QUEUE_TOKEN } = process.env
  const options = QUEUE_TOKEN ? { options: `-c lease.fence=${QUEUE_TOKEN}` } : {}
  return { host: PGHOST, port: Number(PGPORT), user: PGUSER, database: 'app', ...options }
}
