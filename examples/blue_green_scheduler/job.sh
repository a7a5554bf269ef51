#!/bin/sh
# The job: enqueues a task for each repository that is due. Usage: job.sh NAME DATABASE   (psql in $PSQL)
# In the show, the job takes $WORK seconds, or suspends itself before it writes ($STALL), like a paused machine.
set -u
name=$1 database=$2

sql() { "$PSQL" -XqAt -v ON_ERROR_STOP=1 -v VERBOSITY=sqlstate -d "$database" "$@" 2>&1; }

if ! due=$(sql -c "SELECT string_agg(quote_literal(name), ',' ORDER BY name) FROM repositories WHERE due <= now()"); then
    echo "$name cannot ask what is due: $due"
    exit 1
fi
[ "$due" ] || exit 0
sleep "${WORK:-0}"
if [ "${STALL:-}" ]; then
    echo "$name is suspended, about to enqueue $due (process $$)"
    kill -s STOP $$
fi
if answer=$(sql -c BEGIN \
    -c "INSERT INTO tasks (repository, scheduler) SELECT name, '$name' FROM repositories WHERE name IN ($due)" \
    -c "UPDATE repositories SET due = now() + interval '1 hour' WHERE name IN ($due)" -c COMMIT); then
    echo "$name has enqueued $due"
else
    echo "$name could not enqueue $due: $answer"
    exit 1
fi
