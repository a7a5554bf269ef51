// The proxy's errors as classes, from the errors of any driver.

import { CoordinatorUnavailable, NotLeader } from './election.js'

/** An error of the proxy, of the guard or of a lease. Its cause is the driver's error. */
export class FenceError extends Error {
  readonly code: string
  readonly detail: string
  readonly hint: string
  readonly resource?: string
  readonly presented?: bigint
  readonly highest?: bigint
  /** Present if the session was cut off. Then it is closed. */
  readonly outcome?: 'rolled_back' | 'unknown'

  constructor(error: DriverError) {
    super(error.message, { cause: error })
    this.name = new.target.name
    this.code = error.code
    this.detail = error.detail ?? ''
    this.hint = error.hint ?? ''
    const field = (name: string) => new RegExp(`(?:^|\\s)${name}=(\\S+)`).exec(this.detail)?.[1]
    const number = (name: string) => (/^\d+$/.test(field(name) ?? '') ? BigInt(field(name)!) : undefined)
    this.resource = field('resource')
    this.presented = number('presented')
    this.highest = number('highest')
    this.outcome = field('outcome') as FenceError['outcome']
  }
}
/** LF001: a newer leader has written. Stop this work, and campaign again. */
export class StaleToken extends FenceError {}
/** LF002: the session has no token for a fenced resource. */
export class MissingToken extends FenceError {}
/** LF003: lease.fence is not a token, or the transaction has written under another one. */
export class InvalidToken extends FenceError {}
/** LF004: the proxy cannot determine what the statement writes. */
export class UnverifiableStatement extends FenceError {}
/** LF005: the token is not the current leader's. Stop this work, and campaign again. */
export class UnissuedToken extends FenceError {}
/** LF006: the proxy cannot prove which token is the highest. Nothing was written. */
export class FenceUnavailable extends FenceError {}

const CLASSES: Record<string, typeof FenceError> = {
  LF001: StaleToken,
  LF002: MissingToken,
  LF003: InvalidToken,
  LF004: UnverifiableStatement,
  LF005: UnissuedToken,
  LF006: FenceUnavailable,
}
/** Serialization failure, deadlock, too many connections, cannot connect now. */
const RETRYABLE = ['40001', '40P01', '53300', '57P03']

interface DriverError extends Error {
  code: string
  detail?: string
  hint?: string
}

function* chain(error: unknown): Generator<DriverError> {
  for (let depth = 0; error instanceof Error && depth < 10; depth++, error = error.cause) yield error as DriverError
}

/** The fencing error in this error of a driver, or in its causes, if any. */
export function fenceError(error: unknown): FenceError | undefined {
  for (const one of chain(error)) {
    if (one instanceof FenceError) return one
    if (Object.hasOwn(CLASSES, one.code)) return new CLASSES[one.code](one)
  }
  return undefined
}

/**
 * True if nothing was written, and the same transaction may succeed with the same token; of a campaign, if it may succeed.
 * False for lost connections: a COMMIT may have taken effect.
 */
export function isRetryable(error: unknown): boolean {
  if (error instanceof NotLeader) return false
  const found = fenceError(error)
  if (found instanceof FenceUnavailable) return !found.hint.includes('Retrying will not help')
  if (found) return found instanceof UnverifiableStatement && found.hint.includes('now in force')
  if (error instanceof CoordinatorUnavailable) return true
  for (const { code } of chain(error)) if (typeof code === 'string') return RETRYABLE.includes(code)
  return false
}

/** Runs the work, and rejects with a FenceError in place of the driver's error if it is one. */
export async function fencingErrors<T>(work: () => T | Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    throw fenceError(error) ?? error
  }
}
