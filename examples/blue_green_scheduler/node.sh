#!/bin/sh
# One scheduler. In each cycle it tries to take the lock in Redis, and runs the job if it succeeds.
# Usage: node.sh NAME REDIS_SOCKET DATABASE   (psql in $PSQL)
set -u
name=$1 redis=$2 database=$3
here=$(dirname "$0")
cycle=1     # seconds
ttl=3000    # of the lock, in ms
beat=0.9    # seconds: less than a third of that
limit=4     # of the job, in seconds

say() { echo "$name $*"; }
# A step of lock.lua: acquire, extend or release.
lock() {
    timeout 1 redis-cli -s "$redis" -e --eval "$here/lock.lua" scheduler:auto-refresh:lock scheduler:auto-refresh:token , \
        "$1" "$uuid" "$ttl" 2>&1
}

# Extends the lock while this scheduler holds it and lives.
heartbeat() {
    while sleep "$beat" && kill -0 $$ && [ "$(lock extend)" = 1 ]; do :; done
}

run() {
    read -r uuid </proc/sys/kernel/random/uuid
    if ! token=$(lock acquire); then
        say "skips: no answer from Redis"
    elif [ -z "$token" ]; then
        say "skips: another holds the lock"
    else
        say "runs the job under token $token"
        heartbeat & beats=$!
        status=0
        PGOPTIONS="-c lease.fence=$token" timeout "$limit" "$here/job.sh" "$name" "$database" || status=$?
        [ "$status" != 124 ] || say "ends the job: it took longer than $limit s"
        kill "$beats" 2>/dev/null || true
        [ "$(lock release)" = 1 ] && say "releases the lock" || say "no longer holds the lock"
    fi
}

while :; do
    # The next round time, which is the same for all schedulers.
    now=$(date +%s.%N)
    sleep "$(echo "$now" | awk "{ print $cycle - \$1 % $cycle }")"
    run
done
