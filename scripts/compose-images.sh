#!/bin/sh
# Builds images for docker-compose.yml from Debian packages, for a Docker engine without a registry: a Debian base image
# by debootstrap, and replacements for the official images of PostgreSQL and etcd, but not of Prometheus and Grafana.
# Needs root and debootstrap. Usage: scripts/compose-images.sh FOLDER   (for the base's files; may be removed afterwards)
set -eu
docker=${DOCKER:-docker}
mkdir -p "$1"
[ -e "$1/base/etc/debian_version" ] || debootstrap --variant=minbase --include=ca-certificates bookworm "$1/base"
tar -C "$1/base" --exclude=./var/cache/apt --exclude=./var/lib/apt/lists --exclude=./proc/* --exclude=./sys/* -c . |
    $docker import --change 'CMD ["sh"]' - local-debian >/dev/null

# Supports the features of the official image that docker-compose.yml uses: variables, initial scripts, other commands.
context=$1/context
mkdir -p "$context"
cat >"$context/postgres-entrypoint" <<'SCRIPT'
#!/bin/sh
set -eu
PATH=$PATH:/usr/lib/postgresql/15/bin
export PATH
[ "$1" = postgres ] || exec "$@"
data=/var/lib/postgresql/data
if [ ! -e $data/PG_VERSION ]; then
    chown postgres $data
    echo "$POSTGRES_PASSWORD" >/tmp/password
    run="setpriv --reuid postgres --regid postgres --init-groups"
    $run initdb --auth-host=scram-sha-256 --auth-local=trust --username=postgres --pwfile=/tmp/password $data
    echo "host all all all scram-sha-256" >>$data/pg_hba.conf
    $run pg_ctl --pgdata $data --options "-c listen_addresses=" --wait start
    $run createdb --username=postgres "$POSTGRES_DB"
    for script in /docker-entrypoint-initdb.d/*.sql; do
        $run psql --username=postgres --dbname="$POSTGRES_DB" --set=ON_ERROR_STOP=1 --file="$script"
    done
    $run pg_ctl --pgdata $data --wait stop
fi
exec setpriv --reuid postgres --regid postgres --init-groups postgres -D $data -c listen_addresses='*'
SCRIPT
chmod 755 "$context/postgres-entrypoint"
install='RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends'
$docker build --quiet --tag local-postgres --file - "$context" >/dev/null <<SCRIPT
FROM local-debian
RUN mkdir -p /etc/postgresql-common && echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
$install postgresql && rm -rf /var/lib/apt/lists/* && mkdir -p /run/postgresql && chown postgres /run/postgresql
COPY postgres-entrypoint /usr/local/bin/
ENTRYPOINT ["postgres-entrypoint"]
CMD ["postgres"]
SCRIPT
$docker build --quiet --tag local-etcd --file - "$context" >/dev/null <<SCRIPT
FROM local-debian
$install etcd-server etcd-client && rm -rf /var/lib/apt/lists/*
CMD ["etcd"]
SCRIPT
$docker image ls --format '{{.Repository}}: {{.Size}}' 'local-*'
