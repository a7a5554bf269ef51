#!/bin/sh
# Runs psql with the fragments of the program's SQL files as variables.
# Usage: scripts/psql.sh [-v NAME=VALUE]... -f FILE [DATABASE]   Example: scripts/psql.sh -v proxy=a -f crates/.../leave.sql app
set -eu
for file in "$(dirname "$0")"/../crates/*/src/sql/fragments/*.sql "$(dirname "$0")"/../crates/*/src/*/sql/fragments/*.sql; do
    set -- -v "$(basename "$file" .sql)=$(cat "$file")" "$@"
done
exec "${PSQL:-psql}" -X "$@"
