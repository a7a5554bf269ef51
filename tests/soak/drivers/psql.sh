# psql: each session is a script on standard input, with the token in PGOPTIONS.
export PSQL
# For the scripts: SUM adds up its input, and UNTIL_ASLEEP waits until a statement sleeps.
export SUM='{ sum += $1 } END { print step ": " sum }'
export UNTIL_ASLEEP="'$PSQL' -X -q -o /dev/null -c 'SELECT until_asleep()'"

session() {
    PGOPTIONS="-c lease.fence=$1" "$PSQL" -X -A -t -q -v VERBOSITY=verbose 2>&1
}

take_over() {
    echo "PGOPTIONS='-c lease.fence=$1' '$PSQL' -X -q -c 'DELETE FROM jobs WHERE id <> 4'"
}

# Runs a session to its end. Prints the step, the exit code and the error in one line.
shown() {
    { session "$2"; echo "exit=$?"; } |
        sed -n 's/.*\(ERROR\|FATAL\):  \(LF001\): .*/\2 \1/p; s/^DETAIL:  //p; /^exit=/p' |
        paste -s -d ' ' | sed "s/\(.*\) \(exit=.*\)/$1: \2 \1/"
}

"$PSQL" --version | sed 's/psql (PostgreSQL) \([^ ]*\).*/version: \1/'

session 1 <<'SQL' | sed 's/^Asynchronous notification "ticks" with payload "\(.*\)" received .*/listens: \1/'
SELECT current_setting('lease.fence') AS result \gset
\echo token: :result

INSERT INTO jobs VALUES (1, 'one');
SELECT payload AS result FROM jobs WHERE id = 1 \gset
\echo writes: :result

PREPARE job (int) AS INSERT INTO jobs VALUES ($1);
SELECT format('EXECUTE job(%s)', n) FROM generate_series(100, 109) n \gexec
SELECT sum(id) AS result FROM jobs WHERE id BETWEEN 100 AND 109 \gset
\echo prepares: :result

INSERT INTO jobs SELECT generate_series(200, 204) \; INSERT INTO jobs SELECT generate_series(205, 209);
SELECT sum(id) AS result FROM jobs WHERE id BETWEEN 200 AND 209 \gset
\echo batches: :result

\copy jobs (id) FROM PROGRAM 'seq 1000 1999'
\copy (SELECT id FROM jobs WHERE id BETWEEN 1000 AND 1999) TO PROGRAM 'awk -v step=copies "$SUM"'

\set FETCH_COUNT 70
\o |awk -v step=scrolls "$SUM"
SELECT id FROM jobs WHERE id BETWEEN 1000 AND 1999;
\o
\unset FETCH_COUNT

\set large `head -c 4194304 /dev/zero | tr '\\0' x`
INSERT INTO jobs VALUES (2, :'large');
SELECT CASE payload WHEN :'large' THEN 'same' END AS result FROM jobs WHERE id = 2 \gset
\echo carries_large_values: :result

LISTEN ticks;
NOTIFY ticks, 'tick';
SQL

# An interrupt ends a script.
session 1 <<'SQL' | sed -n 's/.*ERROR:  57014: .*/cancels: cancelled/p'
\! (eval "$UNTIL_ASLEEP"; kill -INT $PPID) &
SELECT pg_sleep(600);
SQL

sh -c "$(take_over 2)"
shown is_refused 1 <<'SQL'
INSERT INTO jobs VALUES (3);
SQL

session 1 <<'SQL' | grep -E '^(refusals|aborts|goes_on): '
PREPARE job (int) AS INSERT INTO jobs VALUES ($1);
EXECUTE job(300);
\set prepared :SQLSTATE
INSERT INTO jobs VALUES (300) \; INSERT INTO jobs VALUES (301);
\set batch :SQLSTATE
\copy jobs (id) FROM PROGRAM 'seq 300 309'
\echo refusals: :prepared :batch :SQLSTATE

BEGIN;
INSERT INTO jobs VALUES (3);
SELECT 'refused';
ROLLBACK;
SELECT 'aborts: on' WHERE :'LAST_ERROR_SQLSTATE' = '25P02';
SET lease.fence = 2;
INSERT INTO jobs VALUES (3, 'three');
SELECT 'goes_on: ' || payload FROM jobs WHERE id = 3;
SQL

export TAKE_OVER="$(take_over 3)"
shown is_cut_off 2 <<'SQL'
BEGIN;
INSERT INTO jobs VALUES (4);
\! eval "$TAKE_OVER"
SELECT 'on';
SQL

export TAKE_OVER="$(take_over 4)"
shown is_interrupted 3 <<'SQL'
BEGIN;
INSERT INTO jobs VALUES (4);
\! (eval "$UNTIL_ASLEEP"; eval "$TAKE_OVER") &
SELECT pg_sleep(600);
SQL

session 4 <<'SQL'
INSERT INTO jobs VALUES (4, 'four');
SELECT 'starts_again: ' || payload FROM jobs WHERE id = 4;
SQL
