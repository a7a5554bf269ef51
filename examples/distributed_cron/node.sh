#!/bin/sh
# The node of the cron as a command for `fencegate lead`, which sets its token in PGOPTIONS and kills it when leadership
# is lost:
#   PGHOST=… PGPORT=6432 PGDATABASE=app fencegate lead --etcd URL --election /cron/leader --id shell -- ./node.sh SECONDS
set -eu
period=${1:?usage: node.sh SECONDS}

run() { psql -XqAt -v ON_ERROR_STOP=1 "$@"; }
say() { echo "$FENCE_HOLDER $*"; }

say "leads under token $FENCE_TOKEN"
# Raises the fence before it reads the last tick in seconds since 1970, if there is one.
last=$(run -c 'BEGIN' -c 'LOCK TABLE ticks IN SHARE ROW EXCLUSIVE MODE' \
    -c 'SELECT extract(epoch FROM max(tick))::bigint FROM ticks' -c 'COMMIT')
while :; do
    # The next multiple of the period.
    now=$(date +%s.%N)
    tick=$(((${now%.*} / period + 1) * period))
    sleep "$(echo "$now" | awk "{ print $tick - \$1 }")"
    if [ "$last" ] && [ $((tick - last)) -gt "$period" ]; then
        say "skipped $(((tick - last) / period - 1))"
    fi
    run -c "INSERT INTO ticks (tick, node) VALUES (to_timestamp($tick), '$FENCE_HOLDER')"
    say "tick $(date -u -d "@$tick" +%T)"
    last=$tick
done
