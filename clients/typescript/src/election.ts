// Leadership that rests on a lease: campaign, renewal and loss, for any coordinator.
//
// Must never return a token that is not held, and never count a deadline from a later moment than that at which the
// answered request was sent. It does not decide who may write: the fence stops a leader that does not notice its loss.

import { randomBytes, randomUUID } from 'node:crypto'
import { hostname, uptime } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'

/** A loss is announced this many milliseconds before the deadline. */
const NOTICE = 100
/** Renewals end this long before the announcement, so that it has the reason of their failure. */
const LAST_WORD = 100
/** Time between a failed request and its repetition. */
export const PAUSE = 100
/** A waiting candidate polls at least this often, if it is not notified. */
const POLL = 1000

// performance.now() stops while the machine is suspended; uptime() continues, with a resolution of 10 ms.
const lead = () => uptime() * 1000 - performance.now()
const leadAtStart = lead()
let suspended = 0

/** The clock of `deadline`, in milliseconds. It continues while the machine is suspended. */
export function now(): number {
  const gained = lead() - leadAtStart
  if (gained > suspended + 50) suspended = gained
  return performance.now() + suspended
}

/** This process does not hold the lease. */
export class NotLeader extends Error {
  override name = 'NotLeader'
}
/** Leadership ended before the work did. The work may have taken effect in part. */
export class LeadershipLost extends NotLeader {
  override name = 'LeadershipLost'
}
/** The database or etcd refuses. A retry does not help. */
export class CoordinatorError extends Error {
  override name = 'CoordinatorError'
}
/** The database or etcd did not answer in time. A retry may help. */
export class CoordinatorUnavailable extends CoordinatorError {
  override name = 'CoordinatorUnavailable'
}
/** The lease, or the place in the queue, is no longer this candidate's. */
export class Gone extends Error {}

/**
 * The first answer of `call`, which receives the number of the attempt. Another attempt follows an error, and runs beside
 * those that are silent for `attempt` milliseconds.
 */
export function ask<T>(call: (number: number) => Promise<T>, limit: number, attempt: number): Promise<T> {
  return new Promise((resolve, reject) => {
    let number = 0
    let reason = ''
    let next: NodeJS.Timeout | undefined
    let isOver = false
    const end = (settle: () => void) => {
      isOver = true
      clearTimeout(next)
      clearTimeout(last)
      settle()
    }
    const start = () => {
      next = setTimeout(start, attempt)
      call(number++).then(
        (answer) => end(() => resolve(answer)),
        (error) => {
          if (error instanceof Gone || error instanceof CoordinatorError) return end(() => reject(error))
          reason = `: ${text(error)}`
          clearTimeout(next)
          if (!isOver) next = setTimeout(start, PAUSE)
        },
      )
    }
    const unanswered = () => new CoordinatorUnavailable(`no answer within ${limit / 1000} s${reason}`)
    const last = setTimeout(() => end(() => reject(unanswered())), Math.max(limit, 1))
    start()
  })
}

/** The message of an error, or those of an AggregateError, or of the cause of a failed fetch. */
function text(error: any): string {
  return error?.message || error?.errors?.map(text).join(', ') || String(error?.code ?? error)
}

export interface Options {
  /** Milliseconds until another candidate can lead if this machine fails. Default: 10,000. */
  ttl?: number
  /** Name that observers see. Default: host name, process ID and a random number. */
  holder?: string
  /** Milliseconds between renewals. Default: a third of the TTL. */
  renewEvery?: number
}

/** One candidacy, and the leadership that may follow it. */
export class Term {
  /** As `fencegate lead` does: two candidates never have the same name, and a name is never used twice. */
  readonly identity: string
  readonly end = new AbortController()
  /** In etcd: the lease, and the create_revision of its key. */
  lease = 0n
  place = 0n
  token = 0n
  deadline = 0
  isReleased = false

  constructor(holder: string) {
    this.identity = `${holder}#${randomBytes(8).toString('hex')}`
  }
}

/** An election that this process can lead, many times one after the other. */
export abstract class Election {
  readonly ttl: number
  readonly holder: string
  readonly renewEvery: number
  protected readonly attempt: number
  #term: Term

  constructor(
    readonly name: string,
    { ttl = 10_000, holder, renewEvery = ttl / 3 }: Options = {},
  ) {
    if (!(ttl >= 2000 && ttl <= 3_600_000)) throw new RangeError('ttl must be 2,000 to 3,600,000 ms')
    if (!(renewEvery >= ttl / 9 && renewEvery <= (ttl * 4) / 9))
      throw new RangeError('renewEvery must be between ttl / 9 and ttl * 4 / 9, so that a failed renewal can be repeated')
    this.ttl = ttl
    this.renewEvery = renewEvery
    this.attempt = ttl / 9
    this.holder = holder ?? `${hostname()}:${process.pid}:${randomUUID().slice(0, 8)}`
    this.#term = new Term(this.holder)
    this.#term.end.abort(new NotLeader(`this process does not lead ${name}: no campaign was won`))
  }

  /** Sets the token and deadline of a winner. Returns the time until the next check. */
  protected abstract campaign(term: Term): Promise<number>
  /** Resolves earlier if a check is worthwhile. */
  protected async pause(time: number, signal?: AbortSignal): Promise<void> {
    await sleep(Math.min(time, POLL), undefined, { signal })
  }
  /** Returns when the answered renewal was sent. */
  protected abstract renew(term: Term, limit: number): Promise<number>
  /** Gives up the lease or the place. Also called if it is not known whether there is one. */
  protected abstract leave(term: Term, limit: number): Promise<void>

  /**
   * Aborted while this process does not lead: 100 ms before the deadline if renewals fail. Each term has its own signal.
   * Its reason is a NotLeader.
   */
  get lost(): AbortSignal {
    return this.#term.end.signal
  }

  /** End of the lease on the clock `now()`: one TTL after the last answered renewal was sent. No other candidate leads before it. */
  get deadline(): number {
    return this.#term.deadline
  }

  /** The fencing token. Throws NotLeader if it is not held. */
  get token(): bigint {
    this.check()
    return this.#term.token
  }

  /** Throws NotLeader if this process does not lead. */
  check(): void {
    const { end, deadline } = this.#term
    if (end.signal.aborted) throw new NotLeader(end.signal.reason.message)
    // The timer may be late, for example because the event loop is blocked.
    if (now() >= deadline - NOTICE) throw new NotLeader(`this process does not lead ${this.name}: the lease was not renewed`)
  }

  /**
   * Waits until this process leads, for at most `timeout` milliseconds; 0 tries once. Returns whether it leads. Rejects
   * with the signal's reason if it is aborted.
   */
  async acquire({ timeout = Infinity, signal }: { timeout?: number; signal?: AbortSignal } = {}): Promise<boolean> {
    if (!this.lost.aborted) throw new Error(`this process already leads ${this.name}`)
    const end = now() + timeout
    for (;;) {
      const term = new Term(this.holder)
      try {
        while (!term.token) {
          signal?.throwIfAborted()
          const pause = Math.min(await this.campaign(term), end - now())
          if (term.token) break
          if (pause <= 0) return false
          await this.pause(pause, signal)
        }
        signal?.throwIfAborted()
        if (now() < term.deadline - NOTICE) {
          this.#term = term
          void this.#keep(term)
          return true
        }
      } catch (error) {
        if (signal?.aborted) throw signal.reason
        if (!(error instanceof Gone)) throw error
        await sleep(PAUSE)
      } finally {
        if (this.#term !== term) await this.#tryToLeave(term)
      }
    }
  }

  /** Renews the lease until it is lost or released. */
  async #keep(term: Term): Promise<void> {
    const { signal } = term.end
    let reason = 'this process was suspended'
    let following = term.deadline - this.ttl + this.renewEvery
    for (;;) {
      const end = term.deadline - NOTICE
      await sleep(Math.max(0, Math.min(following, end) - now()), undefined, { signal }).catch(() => {})
      if (signal.aborted) return
      if (end - now() <= LAST_WORD) {
        await sleep(Math.max(0, end - now()), undefined, { signal }).catch(() => {})
        return this.#end(term, `the lease was not renewed: ${reason}`)
      }
      try {
        const sent = await this.renew(term, end - now() - LAST_WORD)
        // An answer that comes after the loss would have been announced does not count.
        if (now() < end) {
          term.deadline = Math.max(term.deadline, sent + this.ttl)
          following = sent + this.renewEvery
        }
      } catch (error) {
        if (error instanceof Gone) return this.#end(term, 'the lease was revoked')
        reason = text(error)
        following = now() + this.attempt
      }
    }
  }

  #end(term: Term, reason: string): void {
    term.end.abort(new NotLeader(`this process does not lead ${this.name}: ${reason}`))
  }

  /**
   * Ends leadership, so that another can lead at once. Call it when all work under the token has ended. Does nothing if
   * this process does not lead. If the coordinator does not answer, the lease ends by itself.
   */
  async release(): Promise<void> {
    const term = this.#term
    this.#end(term, 'it was released')
    if (!term.token || term.isReleased) return
    term.isReleased = true
    await this.#tryToLeave(term)
  }

  async #tryToLeave(term: Term): Promise<void> {
    await this.leave(term, this.attempt * 2).catch(() => {})
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release()
  }
}
