#!/bin/sh
# psql for the program's SQL files: it knows their fragments as variables.
# Usage: scripts/psql.sh [-v NAME=VALUE]... -f FILE [DATABASE]   Example: scripts/psql.sh -v proxy=a -f crates/.../leave.sql app
set -eu
for file in "$(dirname "$0")"/../crates/*/src/sql/fragments/*.sql "$(dirname "$0")"/../crates/*/src/*/sql/fragments/*.sql; do
    set -- -v "$(basename "$file" .sql)=$(cat "$file")" "$@"
done
exec "${PSQL:-psql}" -X "$@"
