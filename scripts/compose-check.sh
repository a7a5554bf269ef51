#!/bin/sh
# Runs docker-compose.yml as examples/distributed_cron/README.md describes, and reports the results: starts everything,
# pauses the leader, wakes it, kills a proxy, stops a member of etcd, and removes everything.
# Usage: scripts/compose-check.sh [SERVICE…]   (default: all services). COMPOSE is the command (docker compose or
# docker-compose); variables such as POSTGRES_IMAGE name the images. It builds missing images: scripts/image.sh is faster.
set -eu
cd "$(dirname "$0")/.."
if [ -z "${COMPOSE:-}" ]; then
    docker compose version >/dev/null 2>&1 && COMPOSE="docker compose" || COMPOSE=docker-compose
fi
COMPOSE_PROJECT_NAME=fencegate-check
export COMPOSE_PROJECT_NAME
began=$(date +%s)

compose() { $COMPOSE "$@"; }
say() { echo "$(($(date +%s) - began)) s: $*"; }
fail() {
    say "FAILED: $*"
    compose ps
    compose logs --tail 20
    exit 1
}
trap 'compose down --volumes --timeout 5 >/dev/null 2>&1' EXIT

# Waits up to a minute until the command succeeds.
until_true() {
    what=$1
    shift
    tries=0
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ "$tries" -lt 120 ] || fail "$what"
        sleep 0.5
    done
    say "$what"
}
psql() { compose exec -T postgres psql --username=postgres --dbname=app -Atc "$1"; }
log_of() { compose logs --no-color "$1"; }
logs_line() { log_of "$1" | grep -q "$2"; }
ticks() { psql "SELECT count(*) FROM ticks"; }
more_ticks_than() { [ "$(ticks)" -gt "$1" ]; }
newer_token() { [ "$(psql "SELECT max(token) FROM ticks")" -gt "$token" ]; }
keep_ticking() {
    now=$(ticks)
    until_true "$1: ticks continue" more_ticks_than "$((now + 2))"
}
leader() {
    for node in cron-a cron-b; do
        ! logs_line $node " leads under token " || { echo $node; return; }
    done
    return 1
}

compose up --detach "$@" >/dev/null || fail "up"
until_true "a node leads" leader
old=$(leader)
[ "$old" = cron-a ] && new=cron-b || new=cron-a
until_true "$old ticks" logs_line "$old" " tick "
compose ps

compose pause "$old" >/dev/null 2>&1
until_true "$old is paused, and $new ticks" logs_line $new " tick "
compose unpause "$old" >/dev/null 2>&1
until_true "$old wakes up, and its write gets LF001" logs_line "$old" "rejected: LF001"
log_of "$old" | grep -m 1 "rejected: LF001"
compose restart "$old" >/dev/null 2>&1
keep_ticking "$old is restarted"

compose kill proxy-1 >/dev/null 2>&1
keep_ticking "proxy-1 is killed"
compose kill proxy-2 >/dev/null 2>&1
compose up --detach --no-deps --no-recreate proxy-1 >/dev/null 2>&1
keep_ticking "proxy-2 is killed, and proxy-1 is back"
compose stop etcd-1 >/dev/null 2>&1
keep_ticking "etcd-1 is stopped"
token=$(psql "SELECT max(token) FROM ticks")
led=$(psql "SELECT node FROM ticks ORDER BY id DESC LIMIT 1")
compose kill "cron-$led" >/dev/null 2>&1
until_true "cron-$led is killed while etcd has two members, and a successor ticks" newer_token
compose restart "cron-$led" >/dev/null 2>&1

twice=$(psql "SELECT count(*) - count(DISTINCT tick) FROM ticks")
late=$(psql "SELECT count(*) FROM ticks a JOIN ticks b ON a.id < b.id AND a.token > b.token")
say "$(ticks) ticks, $twice of them twice, $late out of the order of tokens"
[ "$twice" = 0 ] && [ "$late" = 0 ] || fail "the fence"
${DOCKER:-docker} stats --no-stream --format '{{.Name}}: {{.MemUsage}}' | grep proxy- || true
compose down --volumes --timeout 40 >/dev/null 2>&1
say "everything is removed"
