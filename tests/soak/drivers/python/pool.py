"""Who visits a pool's only connection, one after the other, and what they find there."""

import steps

WRITE = "INSERT INTO jobs SELECT count(*) FROM jobs RETURNING id"
READ = "SELECT quote_literal(current_setting('lease.fence')) || ' ' || pg_backend_pid()"

token = ""


def current_token():
    return token


def run(visit):
    """`visit` takes a connection out of the pool and takes these steps in a transaction, SQL or functions. It returns
    what the last one has read, or the SQLSTATE of the error."""

    def visit_with(visitor, *actions):
        global token
        token = visitor
        return visit(actions)

    steps.report("first", visit_with("1", WRITE, READ))
    steps.report("newer", visit_with("2", WRITE, READ))
    steps.report("none", visit_with("", READ))
    steps.report("refused", visit_with("", WRITE))
    steps.report("rolled_back", visit_with("2", WRITE, "ROLLBACK", READ))
    steps.report("cut_off", visit_with("2", WRITE, lambda: steps.take_over(3), READ))
    steps.report("after", visit_with("3", WRITE, READ))


def take(actions, read):
    """Reads by each that is SQL, and calls the others."""
    results = [read(action) if isinstance(action, str) else action() for action in actions]
    return results[-1]
