// Compiles: the types of the package, as an ES module.

import { EtcdElection, fencePool, fenceSql, fencingErrors, Lease, runAsLeader, StaleToken } from 'fencegate'
import { Pool } from 'pg'
import postgres from 'postgres'

const lease = new Lease('postgres://a,b/app', 'cron/scheduler', { ttl: 10_000, holder: 'node-a', renewEvery: 3000 })
const pool: Pool = fencePool(new Pool(), lease)
const sql = fenceSql(postgres(), () => '47')

export async function main(): Promise<number> {
  await using election = new EtcdElection(['http://127.0.0.1:2379'], '/cron/scheduler/leader')
  const token: bigint = election.token
  const count: number = await runAsLeader(lease, async (lease, lost) => {
    await fetch(`http://127.0.0.1/${lease.holder}`, { signal: lost })
    const rows = await sql.begin((sql) => sql<{ id: number }[]>`SELECT ${String(token)} AS id`)
    return (await pool.query('SELECT 1')).rowCount ?? rows[0].id
  }, { claim: ['scheduler'], connect: 'postgres://a,b/app' })
  const error = await fencingErrors(() => 1).catch((error) => error)
  return error instanceof StaleToken && error.outcome === 'unknown' ? Number(error.highest) : count
}
