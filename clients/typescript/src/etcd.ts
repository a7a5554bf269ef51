// Elections on etcd, through its JSON gateway: no client library is needed. The keys are those of `fencegate lead`,
// `etcdctl elect` and Go's `concurrency.Election`, so all of them can campaign in one election.

import { ask, CoordinatorError, Election, Gone, now, type Options, type Term } from './election.js'

/** Codes of gRPC after which a retry may succeed. */
const UNAVAILABLE = [1, 4, 8, 10, 13, 14, 15]
const NOT_FOUND = 5

interface Pair {
  key: string
  create_revision: string
  lease?: string
}

/** An election on etcd. The token is the `create_revision` of the leader's key, `<name>/<lease in hex>`. */
export class EtcdElection extends Election {
  readonly #members: string[]

  constructor(members: string | string[], name: string, options?: Options) {
    super(name, options)
    if (this.ttl % 1000 !== 0) throw new RangeError("etcd's leases have whole seconds")
    if (!name || name.endsWith('/') || name.includes('//'))
      throw new RangeError('the name of an election must not be empty, end with / or contain //')
    this.#members = [members].flat().map((member) => member.replace(/\/$/, ''))
  }

  protected async campaign(term: Term): Promise<number> {
    if (!term.lease) {
      const [granted, sent] = await this.#post('lease/grant', { TTL: this.ttl / 1000 }, this.ttl)
      term.lease = BigInt(granted.ID)
      term.deadline = sent + Math.min(this.ttl, Number(granted.TTL) * 1000)
      term.place = await this.#enter(term)
    } else if (now() >= term.deadline - this.ttl + this.renewEvery) {
      term.deadline = (await this.renew(term, this.ttl)) + this.ttl
    }
    if (await this.#isFirst(term)) term.token = term.place
    return Math.min(500, this.renewEvery)
  }

  /** Puts the candidate's key, unless an earlier attempt has. Its create_revision is the place in the queue. */
  async #enter(term: Term): Promise<bigint> {
    const key = encoded(this.#key(term.lease))
    const candidates = { request_range: { ...this.#prefix(), keys_only: true } }
    const put = { request_put: { key, value: encoded(this.holder), lease: String(term.lease) } }
    const isNew = { key, target: 'CREATE', create_revision: '0' }
    // The keys of candidates around this election.
    const outer = [...this.name.matchAll(/(?!^)\//g)].map(({ index }) => this.name.slice(0, index + 1))
    const around = outer.map((prefix) => ({
      request_range: { key: encoded(`${prefix}0`), range_end: encoded(`${prefix}g`), keys_only: true, limit: 500 },
    }))
    const reads = [candidates, ...around]
    const answer = await this.#transact([isNew], [put, ...reads], reads)
    const ranges: Pair[][] = answer.responses.flatMap((it: any) => (it.response_range ? [it.response_range.kvs ?? []] : []))
    const [own, ...others] = ranges
    const inner = own.filter((pair) => decoded(pair.key).endsWith(`/${leaseOf(pair)}`) && !this.#isCandidate(pair))
    const enclosing = others.flatMap((pairs, level) => pairs.filter((pair) => decoded(pair.key) === outer[level] + leaseOf(pair)))
    const nested = [...inner, ...enclosing][0]
    if (nested) throw new CoordinatorError(`${this.name} is nested with another election: ${decoded(nested.key)}`)
    const found = own.find((pair) => pair.key === key)
    if (!found) throw new Gone()
    return BigInt(found.create_revision)
  }

  /** One transaction proves it: the key exists, as it was put, and no candidate has a lower create_revision. */
  async #isFirst(term: Term): Promise<boolean> {
    const key = encoded(this.#key(term.lease))
    const isInPlace = [
      { key, target: 'CREATE', create_revision: String(term.place) },
      { key, target: 'LEASE', lease: String(term.lease) },
    ]
    const ahead = { ...this.#prefix(), max_create_revision: String(term.place - 1n), keys_only: true }
    const answer = await this.#transact(isInPlace, [{ request_range: ahead }], [])
    if (!answer.succeeded) throw new Gone()
    const pairs: Pair[] = answer.responses[0].response_range.kvs ?? []
    return !pairs.some((pair) => this.#isCandidate(pair))
  }

  protected async renew(term: Term, limit: number): Promise<number> {
    const [answer, sent] = await this.#post('lease/keepalive', { ID: String(term.lease) }, limit)
    if (!(Number(answer.result?.TTL) > 0)) throw new Gone()
    return sent
  }

  protected async leave(term: Term, limit: number): Promise<void> {
    if (term.lease) await this.#post('lease/revoke', { ID: String(term.lease) }, limit)
  }

  #key(lease: bigint): string {
    return `${this.name}/${lease.toString(16)}`
  }

  /** True for a key that is named after its own lease. */
  #isCandidate(pair: Pair): boolean {
    return decoded(pair.key) === `${this.name}/${leaseOf(pair)}`
  }

  #prefix() {
    return { key: encoded(`${this.name}/`), range_end: encoded(`${this.name}0`) } // "0" follows "/".
  }

  async #transact(compare: object[], success: object[], failure: object[]): Promise<any> {
    return (await this.#post('kv/txn', { compare, success, failure }, this.ttl))[0]
  }

  /** The answer of the first member that answers, and when the answered request was sent. */
  #post(path: string, body: object, limit: number): Promise<[any, number]> {
    const call = async (number: number): Promise<[any, number]> => {
      const member = this.#members[number % this.#members.length]
      const sent = now()
      const signal = AbortSignal.timeout(Math.max(1, Math.ceil(limit)))
      const response = await fetch(`${member}/v3/${path}`, { method: 'POST', body: JSON.stringify(body), signal })
      const answer = JSON.parse((await response.text()) || '{}')
      if (response.ok) return [answer, sent]
      const message = answer.message ?? answer.error ?? `${member}: ${response.status}`
      if (answer.code === NOT_FOUND) throw new Gone()
      if (UNAVAILABLE.includes(answer.code ?? 14)) throw new Error(message)
      throw new CoordinatorError(message)
    }
    return ask(call, limit, this.attempt)
  }
}

const encoded = (text: string) => Buffer.from(text).toString('base64')
const decoded = (text: string) => Buffer.from(text, 'base64').toString()
/** In hex. No key is named after it if there is none. */
const leaseOf = (pair: Pair) => (pair.lease && pair.lease !== '0' ? BigInt(pair.lease).toString(16) : '-')
