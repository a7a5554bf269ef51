// Throwaway servers: PostgreSQL with the fenced tables, a proxy, etcd. They end with the test's process.

import { execFile, execFileSync, spawn } from 'node:child_process'
import { chmodSync, chownSync, mkdirSync, mkdtempSync, openSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'

export const BINARY = process.env.FENCEGATE_BINARY
const POLICIES = `version: 1
resources:
  - {name: jobs, tables: [public.jobs]}
  - {name: scheduler, lease: cron/scheduler, tables: [public.ticks]}
`
const SCHEMA = `CREATE ROLE app LOGIN;
CREATE TABLE jobs (id bigserial PRIMARY KEY, run_by text);
CREATE TABLE ticks (tick text PRIMARY KEY, run_by text);
INSERT INTO ticks VALUES ('12:00');
GRANT ALL ON jobs, ticks, jobs_id_seq TO app;`

export async function waitUntil(what, condition) {
  const end = Date.now() + 30_000
  while (!(await condition())) {
    if (Date.now() > end) throw new Error(`not within 30 s: ${what}`)
    await sleep(10)
  }
}

export function freePort() {
  return new Promise((resolve) => {
    const server = createServer().listen(0, '127.0.0.1', () => {
      const { port } = server.address()
      server.close(() => resolve(port))
    })
  })
}

function postgresProgram(name) {
  const folder = '/usr/lib/postgresql'
  const versions = readdirSync(folder).sort((a, b) => b - a)
  return join(folder, versions[0], 'bin', name)
}

/** The tests' own, without settings that reach the servers. */
export const environment = Object.fromEntries(
  Object.entries(process.env).filter(([name]) => !/^(PG|FENCEGATE_|ETCD)/.test(name)),
)
const run = promisify(execFile)
const isRoot = process.getuid() === 0
const asServer = isRoot ? ['setpriv', '--reuid=postgres', '--regid=postgres', '--init-groups'] : []
const folder = mkdtempSync(join(tmpdir(), 'fencegate-'))
chmodSync(folder, 0o755)

const programs = []
process.on('exit', () => {
  for (const program of programs.reverse()) program.kill()
  rmSync(folder, { recursive: true, force: true, maxRetries: 10, retryDelay: 100 })
})

/** A program. `pause` stops all of its processes, as a hung machine would. */
class Program {
  constructor(name, command) {
    const log = openSync(join(folder, `${name}.log`), 'a')
    this.process = spawn(command[0], command.slice(1), { stdio: ['ignore', log, log], env: environment, cwd: '/' })
    programs.push(this)
  }

  #all() {
    const { pid } = this.process
    const children = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8')
    return [pid, ...children.trim().split(/\s+/).filter(Boolean).map(Number)]
  }

  signal(name) {
    for (const pid of this.#all()) {
      try {
        process.kill(pid, name)
      } catch {} // It has ended.
    }
  }

  pause() {
    this.signal('SIGSTOP')
  }

  resume() {
    this.signal('SIGCONT')
  }

  /** The postmaster frees its shared memory, and ends the other processes. */
  kill() {
    try {
      this.resume()
      this.process.kill('SIGQUIT')
    } catch {} // It has ended.
  }
}

export class Postgres extends Program {
  static async start() {
    const port = await freePort()
    const home = join(folder, 'postgres')
    mkdirSync(home)
    const id = (option) => Number(execFileSync('id', [option, 'postgres']))
    if (isRoot) chownSync(home, id('-u'), id('-g'))
    const initdb = [...asServer, postgresProgram('initdb'), '--no-sync', '-A', 'trust', '-U', 'postgres', '-E', 'UTF8']
    const data = join(home, 'data')
    execFileSync(initdb[0], [...initdb.slice(1), '--locale=C', '-D', data], { cwd: '/' })
    const settings = { port, listen_addresses: '127.0.0.1', unix_socket_directories: home, fsync: 'off' }
    const options = Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`])
    const postgres = new Postgres('postgres', [...asServer, postgresProgram('postgres'), '-D', data, ...options])
    postgres.port = port
    await waitUntil('PostgreSQL listens', () => isReady(port))
    await postgres.sql('CREATE DATABASE app', 'postgres')
    await postgres.sql(SCHEMA)
    const control = ['--control', postgres.url('postgres')]
    await run(BINARY, ['init', ...control, '--leases-for', 'app', '--elections', '*'], { env: environment })
    return postgres
  }

  url(role = 'app') {
    return `postgres://${role}@127.0.0.1:${this.port}/app`
  }

  async sql(query, database = 'app') {
    const address = ['-h', '127.0.0.1', '-p', this.port, '-U', 'postgres', '-d', database]
    const { stdout } = await run(postgresProgram('psql'), ['-XqAt', '-v', 'ON_ERROR_STOP=1', ...address, '-c', query])
    return stdout.trim()
  }

  expire(election) {
    return this.sql(`UPDATE fencegate_state.lease SET expires = clock_timestamp() WHERE election = '${election}'`)
  }
}

export class Proxy extends Program {
  static async start(postgres) {
    const port = await freePort()
    const policies = join(folder, 'policies')
    mkdirSync(policies)
    writeFileSync(join(policies, 'policy.yaml'), POLICIES)
    const server = `127.0.0.1:${postgres.port}`
    const upstream = ['--upstream', `postgres://${server}`, '--control', `postgres://postgres@${server}/`]
    const listen = ['--listen', `127.0.0.1:${port}`]
    const proxy = new Proxy('proxy', [BINARY, 'proxy', ...listen, ...upstream, '--policies', policies])
    proxy.port = port
    proxy.url = `postgres://app@127.0.0.1:${port}/app`
    await waitUntil('the proxy listens', () => isReady(port))
    return proxy
  }
}

export class Etcd extends Program {
  static async start() {
    const url = `http://127.0.0.1:${await freePort()}`
    const peers = `http://127.0.0.1:${await freePort()}`
    const listen = ['--listen-client-urls', url, '--advertise-client-urls', url, '--listen-peer-urls', peers]
    const peer = ['--initial-advertise-peer-urls', peers, '--initial-cluster', `default=${peers}`]
    const etcd = new Etcd('etcd', ['etcd', '--data-dir', join(folder, 'etcd'), ...listen, ...peer])
    etcd.url = url
    await waitUntil('etcd answers', () => etcd.ctl('get', '/').then(() => true, () => false))
    return etcd
  }

  async ctl(...options) {
    const variables = { ...environment, ETCDCTL_API: '3' }
    return (await run('etcdctl', ['--endpoints', this.url, ...options], { env: variables })).stdout
  }
}

function isReady(port) {
  const command = ['-q', '-h', '127.0.0.1', '-p', String(port)]
  return run(postgresProgram('pg_isready'), command).then(() => true, () => false)
}

/** Exit code of a program. */
export function exitCode(program, ...options) {
  return run(program, options, { env: environment }).then(() => 0, (error) => error.code)
}

let number = 0
/** Name of an election that no other test uses. */
export const newName = () => `test/${process.pid}/${++number}`
let token = 0
/** A token that is higher than those before it. */
export const nextToken = () => ++token
