// Compiles: the types of the package, as CommonJS.

import { Lease, runAsLeader } from 'fencegate'

export const result: Promise<bigint> = runAsLeader(new Lease('postgres://a/app', 'cron/scheduler'), (lease) => lease.token)
