#!/bin/sh
# Builds the packages of clients/, installs each into a fresh environment, and tests the installed package there.
# Usage: FENCEGATE_BINARY=target/debug/fencegate scripts/clients.sh [python|typescript|go]…   Default: all of them.
set -eu
cd "$(dirname "$0")/.."
FENCEGATE_BINARY=$(realpath "${FENCEGATE_BINARY:?the program under test}")
export FENCEGATE_BINARY
clients=$PWD/clients
folder=$(mktemp -d)
mkdir "$folder/t"
chmod 755 "$folder" "$folder/t"
export TMPDIR="$folder/t"
# The tests' drivers must not read the user's settings.
for name in $(env | sed -n 's/^\(PG[A-Z]*\|ETCD[A-Z_]*\)=.*/\1/p'); do
    unset "$name"
done
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' INT TERM HUP

python() {
    python3 -m venv "$folder/python"
    PATH=$folder/python/bin:$PATH
    pip wheel --quiet --no-deps --wheel-dir "$folder" "$clients/python"
    pip install --quiet "$folder"/fencegate-*.whl "psycopg[binary]==3.2.13" psycopg-pool==3.3.3 psycopg2-binary==2.9.13 asyncpg==0.30.0 \
        Django==5.2.19 "SQLAlchemy[asyncio]==2.0.58" celery==5.4.0 APScheduler==3.11.0 pytest==8.4.2 mypy==1.18.2
    # Without the sources: the tests import the installed package.
    mkdir "$folder/tests_of_python"
    cp -r "$clients/python/tests" "$clients/python/examples" "$clients/python/README.md" "$folder/tests_of_python"
    (cd "$clients/python" && mypy --cache-dir "$folder/mypy")
    (cd "$folder/tests_of_python" && PYTHONDONTWRITEBYTECODE=1 pytest --quiet tests)
}

typescript() {
    cp -r "$clients/typescript" "$folder/package"
    rm -rf "$folder/package/node_modules" "$folder/package/dist"
    npm install --silent --no-audit --no-fund --prefix "$folder/package" --omit peer
    (cd "$folder/package" && npm pack --silent --pack-destination "$folder" >"$folder/pack.log")
    project=$folder/project
    mkdir "$project"
    echo '{"private": true}' >"$project/package.json"
    npm install --silent --no-audit --no-fund --prefix "$project" "$folder"/fencegate-*.tgz pg@8.23.1 postgres@3.4.9 @types/pg@8.23.1 \
        @types/node@20.19.43 typescript@5.9.3
    cp -r "$clients/typescript/test" "$clients/typescript/README.md" "$project"
    cd "$project"
    # The types, as an ES module and as CommonJS.
    npx tsc --noEmit --strict --target es2022 --module nodenext --lib es2023,esnext.disposable test/types.mts test/types.cts
    node --test --test-force-exit --test-concurrency=1 --test-reporter=dot test/*.test.mjs
    # Without node-postgres, a lease uses postgres.js.
    rm -r node_modules/pg
    node --test --test-force-exit --test-reporter=dot test/without_pg.mjs
}

go() {
    "$clients/go/check.sh"
}

[ $# -gt 0 ] || set -- python typescript go
for client; do
    echo "clients/$client"
    ("$client")
done
