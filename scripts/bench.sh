#!/bin/sh
# What the proxy costs: pgbench with 8 clients, direct and through the proxy, all on this machine.
# The tables of pgbench are fenced, and every client presents the token.
# Usage: scripts/bench.sh [SECONDS]   (of each run; default 10). Needs target/release/fencegate: see `make bench`.
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-10}
fencegate=${FENCEGATE:-$PWD/target/release/fencegate}
bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1)
[ -n "$bin" ] || bin=$(dirname "$(command -v postgres)")

folder=$(mktemp -d "${TMPDIR:-/tmp}/fencegate-bench-XXXXXX")
mkdir "$folder/policies"
cat >"$folder/policies/pgbench.yaml" <<'YAML'
version: 1
resources:
  - name: pgbench
    tables: [public.pgbench_accounts, public.pgbench_branches, public.pgbench_tellers, public.pgbench_history]
YAML

# The servers of the demo, under the same guardian: it stops them and removes the folder once its input closes.
mkfifo "$folder/stop" "$folder/status"
setsid sh src/stage/guardian.sh "$folder" "$bin" "$fencegate" <"$folder/stop" >"$folder/status" 2>/dev/null &
guardian=$!
exec 9>"$folder/stop"
trap 'exec 9>&-; wait "$guardian"' EXIT
trap 'exit 1' INT TERM HUP
if ! read -r _ <"$folder/status"; then
    tail -n 15 "$folder/log" >&2
    exit 1
fi

export PGHOST="$folder" PGUSER=postgres PGDATABASE=app PGOPTIONS='-c lease.fence=1'
export PGPORT=5432
"$bin/pgbench" -i -q -s 5 >/dev/null 2>&1

# Transactions per second, and the mean latency in ms.
run() {
    PGPORT=$1 "$bin/pgbench" -n -b "$2" -M "$3" -c 8 -j 2 -T "$seconds" 9>&- | awk '
        /^number of failed transactions: [1-9]/ { failed = 1 }
        /^latency average/ { latency = $4 }
        /^tps/ { tps = $3 }
        END { if (failed || !tps) exit 1; printf "%.0f %.3f\n", tps, latency }'
}

echo "$("$bin/postgres" --version), $(nproc) cores, 8 clients, $seconds s a run, load before: $(cut -d ' ' -f 1 /proc/loadavg 2>/dev/null)"
printf '%-12s %-9s %12s %12s %7s %14s\n' script protocol 'direct tps' 'proxied tps' share 'added latency'
for script in select-only tpcb-like; do
    for protocol in simple prepared; do
        direct=$(run 5432 "$script" "$protocol")
        proxied=$(run 6432 "$script" "$protocol")
        echo "$script $protocol $direct $proxied" |
            awk '{ printf "%-12s %-9s %12d %12d %6.0f%% %11.3f ms\n", $1, $2, $3, $5, 100 * $5 / $3, $6 - $4 }'
    done
done
