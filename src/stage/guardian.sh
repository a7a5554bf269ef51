# Runs throwaway servers, and outlives whoever wants them to clean up after it.
# Standard input is a pipe that only the wanting process holds: it closes when that ends, however it ends.
# Standard output says `ready` once all is up; it closes early when something fails, and the log says why.
# STAGE_CONNECTIONS: how many PostgreSQL takes.
# Usage: guardian FOLDER DIRECTORY_OF_POSTGRES FENCEGATE [ETCD_PORT PEER_PORT]   (FOLDER has the policies in it)
folder=$1 bin=$2 fencegate=$3 port=${4:-} peer=${5:-}
control="host=$folder port=5432 user=postgres dbname=app"

# PostgreSQL refuses to run as root.
as_server() {
    if [ "$(id -u)" -eq 0 ]; then
        cd / && exec setpriv --reuid=postgres --regid=postgres --init-groups "$@"
    fi
    exec "$@"
}

serve() {
    set -e
    if [ "$(id -u)" -eq 0 ]; then chown postgres: "$folder"; fi
    (as_server "$bin/initdb" --no-sync -A trust -U postgres -E UTF8 --locale=C -D "$folder/data")
    # On a Unix socket only: no port to collide with, and out of other users' reach.
    (as_server "$bin/postgres" -D "$folder/data" -c listen_addresses= -c "unix_socket_directories=$folder" \
        -c fsync=off -c wal_level=logical -c shared_buffers=32MB -c max_connections="${STAGE_CONNECTIONS:-200}" -c lc_messages=C) 4>&- &
    server=$!
    until "$bin/pg_isready" -q -h "$folder" -p 5432 -U postgres; do
        kill -0 "$server"
        sleep 0.05
    done
    if [ "$port" ]; then
        etcd --data-dir "$folder/etcd" --listen-client-urls "http://127.0.0.1:$port" \
            --advertise-client-urls "http://127.0.0.1:$port" --listen-peer-urls "http://127.0.0.1:$peer" \
            --initial-advertise-peer-urls "http://127.0.0.1:$peer" \
            --initial-cluster "default=http://127.0.0.1:$peer" 4>&- &
        etcd=$!
        echo "$etcd" >"$folder/etcd.pid"
        set -- --etcd "http://127.0.0.1:$port"
    else
        set --
    fi
    "$bin/psql" -X -q -h "$folder" -p 5432 -U postgres -c "CREATE DATABASE app" postgres
    "$fencegate" init --control "$control" --leases-for postgres
    # The server asks nobody for a password, and nobody else gets into this folder.
    "$fencegate" --log-format json proxy --listen "$folder" --upstream "$folder:5432" --control "$control" \
        --allow-unauthenticated unix --policies "$folder/policies" "$@" 4>&- &
    proxy=$!
    until [ -S "$folder/.s.PGSQL.6432" ]; do
        kill -0 "$proxy"
        sleep 0.02
    done
    # It logs this once it serves clients.
    until [ -z "$port" ] || grep -q "ready to serve client requests" "$folder/log"; do
        kill -0 "$etcd"
        sleep 0.02
    done
    echo ready >&4
    exec 4>&-
    wait
}

exec 3<&0 4>&1
trap : TERM INT
# The log ends when the last process that could write to it has ended.
serve 3<&- </dev/null 2>&1 | (trap '' TERM INT; exec cat >"$folder/log" 3<&- 4>&-) &
log=$!
exec 1>&- 4>&-
read -r _ <&3
# To all of its process group: CONT wakes what somebody has stopped, TERM ends the proxy and whatever is starting, INT
# makes PostgreSQL hurry.
kill -s CONT 0
kill -s TERM 0
kill -s INT 0
until wait "$log"; do kill -0 "$log" 2>/dev/null || break; done
rm -rf "$folder"
