"""An inductive proof of the protocol of docs/trust/protocol.md, for any number of proxies, processes, resources and tokens.

Promises. Every state that the steps below can reach keeps three promises:
- order: on no resource does a write under a lower epoch commit after a write under a higher one;
- drained: while an epoch is drained, everything that can still commit a write is under that epoch;
- unprepared: no prepared transaction contains a write that the gate has forwarded.
Z3 checks that the initial states satisfy the lemmas, and that each step keeps them. Quantifiers range over sorts of any size,
and none alternate. Any step can come at any time, so a Query that arrives late is included.

The proof is not empty. Each step can be taken in a state that satisfies the lemmas. A takeover is a history from
an initial state. The promises alone are not inductive. For each precondition, Z3 finds a history that starts in a state that
satisfies the lemmas, takes steps of the protocol without that precondition, and breaks a promise in its last step. A name that is
also in tests/mutants is the same mistake. `protocol.py --stories` replays these histories without Z3, and prints them;
`protocol.py NAME` does so for one.

Assumptions. Each step is atomic; the lock or snapshot that makes it atomic is named there. PostgreSQL's locks, visibility,
durability and process identities (pid and start) are as documented. Every write passes the gate or the guard. A session is idle
when the server owes nothing. A promotion ends the old primary. A source issues no token twice. The proof does not cover progress,
what clients are told, savepoints, epochs that a subscription brings, or the code. Tests cover these.
"""
import inspect
import itertools
import sys
import z3

# ---- Sorts. The sort of a variable follows from its name ----------------------------------------------------------------
SORTS = Resource, Process, Proxy, Epoch, Pid = list(map(z3.DeclareSort, ("Resource", "Process", "Proxy", "Epoch", "Pid")))
SORT = {"r": Resource, **dict.fromkeys(("p", "q", "old", "new", "dead"), Process), **dict.fromkeys("xy", Proxy),
        **dict.fromkeys(("e", "f", "low", "middle", "high"), Epoch), "is_last": z3.BoolSort()}
replayed = None  # During a replay: elements of the history by sort, and the values of constants.

def constant(name, arguments, sort):
    function = z3.Function(name, *(SORT[it] for it in arguments), sort)
    return lambda *its: replayed[name][its] if replayed else function(*its)
# era: counts resets and deletions of the epoch row. Only the judge uses it, never the protocol.
# copied: rows of `admission` that were written for another database, as in a restored copy.
CONSTANT = {"pid": ("p", Pid), "proxy": ("p", Proxy), "generation": ("e", z3.IntSort()), "token": ("e", z3.IntSort()),
            "era": ("e", z3.IntSort()), "copied": ("pre", z3.BoolSort())}
pid, proxy, generation, token, era, copied = (constant(name, *it) for name, it in CONSTANT.items())
def on_values(plain, symbolic):
    return lambda *its: plain(its) if all(isinstance(it, bool) for it in its) else symbolic(*its)
And, Or, Not = on_values(all, z3.And), on_values(any, z3.Or), on_values(lambda its: not its[0], z3.Not)
def Implies(a, b): return Or(Not(a), b)
def If(condition, then, otherwise):
    return (then if condition else otherwise) if isinstance(condition, bool) else z3.If(condition, then, otherwise)

def forall(body, names=None):
    sorts = [SORT[name] for name in names or inspect.signature(body).parameters]
    if replayed:
        return all(body(*them) for them in itertools.product(*(replayed[str(sort)] for sort in sorts)))
    variables = [z3.FreshConst(sort) for sort in sorts]
    found = body(*variables)
    return found if isinstance(found, bool) else z3.ForAll(variables, found)
def none(body, names=None):
    return forall(lambda *them: Not(body(*them)), names or inspect.signature(body).parameters)
def some(body): return Not(none(body))

def below(e, f):
    """The protocol's order of epochs."""
    return Or(generation(e) < generation(f), And(generation(e) == generation(f), token(e) < token(f)))
def older(e, f):
    """The judge's order of epochs."""
    return Or(era(e) < era(f), And(era(e) == era(f), token(e) < token(f)))

# ---- The state: relations with their arguments, and their text in a story -----------------------------------------------
LOGGED = {"has_epoch": ("r", ""), "epoch": ("r", ""), "drained": ("r", ""), "current_era": ("r", ""),
          "prepared": ("re", "a prepared transaction has a write under {1}"), "committed": ("re", "a write under {1} is committed"),
          "out_of_order": ("r", ""), "prepared_past_gate": ("r", "")}  # The judge: a broken promise.
UNLOGGED = {
    # The database.
    "admission": ("pre", "{0} has an admission under {2}"),
    "admitting": ("pre", "an Admit of {0} has read {2} and holds the lock shared"),
    "marking": ("xre", "a Mark of {2} has looked at the processes and holds the epoch row"),
    # Server processes.
    "alive": ("p", "{0} is alive"),
    "ending": ("p", "{0} was signalled"),
    "written": ("pre", "{0} has an uncommitted write under {2}"),
    "kept": ("pre", "{0} holds the guard's lock on its admission under {2}"),
    "guarded": ("pre", "{0} has an uncommitted guarded write under {2} and holds the lock shared"),
    # The session of the process, in its proxy.
    "answer": ("pre", "the answer to an Admit of {0} under {2} is on its way"),
    "overtaken": ("pre", "a revocation has overtaken the answer to {0} under {2}"),
    "admitted": ("pre", "the session of {0} is admitted under {2}"),
    "may_have_written": ("pre", "the proxy has forwarded a write of {0} under {2} in the open transaction"),
    "spared": ("pre", "a DELETE of the admission of {0} under {2} is on its way")}
# The standby has replayed the logged part of some earlier state.
RELATIONS = LOGGED | UNLOGGED | {"born": ("p", "")} | {"standby_" + name: (LOGGED[name][0], "") for name in LOGGED}

class State:
    """A function for each relation. A step replaces the relations that it changes."""
    def __init__(self, relations):
        self.__dict__.update(relations)
    def but(self, **relations):
        return State(self.__dict__ | relations)
    def plus(self, names, *key):
        return self.but(**{it: lambda *its, old=getattr(self, it): Or(old(*its), same(its, key)) for it in names.split()})
    def minus(self, names, *key):
        """The state without the entries that begin with the key."""
        return self.but(**{it: lambda *its, old=getattr(self, it): And(old(*its), Not(same(its, key))) for it in names.split()})
    def put(self, r, e, drained):
        def at(value, before):
            return lambda it: If(it == r, value, before(it))
        return self.but(has_epoch=at(True, self.has_epoch), epoch=at(e, self.epoch), drained=at(drained, self.drained),
                        current_era=at(era(e), self.current_era))
    def restarted(self, prefix=""):
        """The state after a restart: no process lives, and unlogged data is lost."""
        return self.but(**{name: lambda *_: False for name in UNLOGGED}, **{it: getattr(self, prefix + it) for it in LOGGED})
def same(these, those): return And(*(a == b for a, b in zip(these, those)))

# ---- Preconditions. rule(right, name=wrong): the right one, and its replacement when the name is missing ----------------
def unlocked(rule, s, r):
    """The exclusive lock of the resource and the epoch row are free: no Admit, guarded write or Mark holds them."""
    return And(rule(none(lambda p, e: s.admitting(p, r, e)), for_key_share=True),
               rule(none(lambda p, e: s.guarded(p, r, e)), guard_without_lock=True),
               rule(none(lambda x, e: s.marking(x, r, e)), drain_and_mark_in_one_look=True))
def raises(rule, s, r, e):
    """The epoch is above the old one, in its generation. Without an old one, it is above all admissions."""
    above = forall(lambda p, f: Implies(Or(s.admission(p, r, f), copied(p, r, f)), generation(f) < generation(e)))
    is_same = generation(e) == generation(s.epoch(r))
    return And(era(e) == s.current_era(r), If(
        s.has_epoch(r), And(is_same, rule(token(s.epoch(r)) < token(e), epoch_lowered=True)),
        rule(above, generation_starts_again=generation(e) == 1)))
def nobody_below(s, r, f, but=lambda p: False):
    """No living process is admitted below the epoch."""
    return forall(lambda p, e: Implies(And(s.alive(p), s.admission(p, r, e), below(e, f)), but(p)))
def nothing_prepared(s, r): return none(lambda e: s.prepared(r, e))
def has_written(s, p, r, e): return Or(s.written(p, r, e), s.guarded(p, r, e))
def in_force(s, r, e): return And(s.has_epoch(r), s.drained(r), s.epoch(r) == e)

# ---- Steps. Each returns its preconditions, and the state after it. A docstring is also the sentence of a story ---------
# Processes, and how a session is admitted.
def connect(s, rule, p):
    """{p} starts with a pid that no living process has."""
    return And(Not(s.born(p)), none(lambda q: And(s.alive(q), pid(q) == pid(p)))), s.plus("alive born", p)
def admit(s, rule, p, r, e):
    """An Admit of {p} takes the lock shared, reads the epoch FOR SHARE, and accepts {e}."""
    there, its, drained = s.has_epoch(r), s.epoch(r) == e, s.drained(r)
    needed = rule(And(there, its, drained), missing_row_admits=Or(Not(there), And(its, drained)),
                  comparison_in_memory_only=And(there, drained), admits_before_drained=And(there, its))
    return And(s.alive(p), needed), s.plus("admitting", p, r, e)
def admit_commits(s, rule, p, r, e):
    """The Admit of {p} commits. It adds the admission under {e}, or a new version of it."""
    after = s.minus("admitting overtaken", p, r, e).plus("admission answer", p, r, e)
    return s.admitting(p, r, e), rule(after.minus("spared", p, r, e), version_ignored=after)
def admit_replies(s, rule, p, r, e):
    """The answer arrives: the session of {p} is admitted under {e}."""
    is_its = rule(s.answer(p, r, e), first_tokens_mixed_up=some(lambda q: s.answer(q, r, e)))
    counts = rule(Not(s.overtaken(p, r, e)), floors_dropped=True, first_token_without_a_floor=True)
    return And(is_its, counts), s.minus("answer", p, r, e).plus("admitted", p, r, e)
def first_tokens(s, rule, p, r, e):
    """A Query for first tokens takes the lock exclusively, makes {e} the drained epoch, and admits {p}."""
    is_free = rule(none(lambda p, e: Or(s.admitting(p, r, e), s.guarded(p, r, e))), first_token_without_lock=True)
    is_new = rule(Not(s.has_epoch(r)), first_token_past_an_epoch=True)
    has_none = rule(none(lambda p, e: Or(s.admission(p, r, e), copied(p, r, e))), first_token_beside_an_admission=True)
    nothing_left = rule(none(lambda r, e: s.prepared(r, e)), first_token_beside_a_prepared=True)
    after = s.put(r, e, True).plus("admission answer", p, r, e).minus("overtaken spared", p, r, e)
    return And(s.alive(p), era(e) == s.current_era(r), is_free, is_new, has_none, nothing_left), after
# Writes: forwarded by the gate, or seen only by the guard.
def begin_write(s, rule, p, r, e):
    """The proxy forwards a write of {p} under {e}. The server may run it at any time until the transaction ends."""
    return rule(s.admitted(p, r, e), writes_not_held_back=True), s.plus("may_have_written", p, r, e)
def run(s, rule, p, r, e):
    """The server runs the write of {p} under {e}."""
    return And(s.alive(p), s.may_have_written(p, r, e)), s.plus("written", p, r, e)
def write_by_admission(s, rule, p, r, e):
    """{p} writes. The guard finds an admission under {e}, and locks it."""
    found = rule(s.admission(p, r, e), copied_row_counts=Or(s.admission(p, r, e), copied(p, r, e)))
    return And(s.alive(p), found), s.plus("written kept", p, r, e)
def write_by_lock(s, rule, p, r, e):
    """{p} writes without an admission. The guard takes the lock shared, and finds {e} in force."""
    found = rule(in_force(s, r, e), guard_before_drained=And(s.has_epoch(r), s.epoch(r) == e))
    return And(s.alive(p), found), s.plus("guarded", p, r, e)
# Transactions.
def ended(s, p):
    """The transaction of the process is over, and its locks are released."""
    return s.minus("written kept guarded", p)
def judged(s, commits):
    return s.but(committed=lambda r, e: Or(s.committed(r, e), commits(r, e)), out_of_order=lambda r: Or(
        s.out_of_order(r), some(lambda e, f: And(commits(r, e), s.committed(r, f), older(e, f)))))
def commit(s, rule, p):
    """{p} commits."""
    return s.alive(p), ended(judged(s, lambda r, e: has_written(s, p, r, e)), p)
def roll_back(s, rule, p):
    """{p} rolls back."""
    return s.alive(p), ended(s, p)
def rest(s, rule, p):
    """The proxy regards {p} as idle: the server owes nothing, and no transaction is open."""
    is_over = none(lambda r, e: has_written(s, p, r, e))
    return rule(is_over, open_transaction_taken_for_idle=True), s.minus("may_have_written", p)
def prepare(s, rule, p):
    """{p} prepares its transaction."""
    passes = none(lambda r, e: Or(s.admitted(p, r, e), s.may_have_written(p, r, e)))
    return And(s.alive(p), rule(passes, prepare_allowed=True)), ended(s, p).but(
        prepared=lambda r, e: Or(s.prepared(r, e), has_written(s, p, r, e)), prepared_past_gate=lambda r: Or(
            s.prepared_past_gate(r), some(lambda e: And(s.written(p, r, e), s.may_have_written(p, r, e)))))
def commit_prepared(s, rule, r, e, is_last):
    """A prepared transaction with a write under {e} commits."""
    after = judged(s, lambda *its: same(its, (r, e)))
    return s.prepared(r, e), after.but(prepared=lambda *its: And(s.prepared(*its), Not(And(is_last, same(its, (r, e))))))
def roll_back_prepared(s, rule, r, e):
    """The last prepared transaction with a write under {e} rolls back."""
    return s.prepared(r, e), s.minus("prepared", r, e)
# Publish, drain, Mark.
def publish(s, rule, r, e):
    """Publish takes the lock exclusively, and raises the epoch to {e}, not drained."""
    return And(unlocked(rule, s, r), raises(rule, s, r, e)), s.put(r, e, False)
def revoke(s, rule, p, r, f):
    """The proxy of {p} revokes its session below {f}. If it has forwarded nothing under the old token, it sends a DELETE."""
    def due(*its):
        return And(its[0] == p, its[1] == r, below(its[2], f))
    def withdrawn(*its):
        return And(due(*its), rule(True, revoked_too_late=False, admission_outlives_reset=token(its[2]) < token(f)))
    def released(*its):
        is_idle = rule(Not(s.may_have_written(*its)), writer_released=True, busy_session_released=Not(s.written(*its)))
        return And(due(*its), s.admission(*its), is_idle)
    return True, s.but(admitted=lambda *its: And(s.admitted(*its), Not(withdrawn(*its))),
                       overtaken=lambda *its: Or(s.overtaken(*its), And(due(*its), s.answer(*its))),
                       spared=lambda *its: Or(s.spared(*its), released(*its)))
def delete(s, rule, x, p, r, e):
    """Proxy {x} deletes the admission of {p} under {e}, unless the guard has locked it."""
    is_its = rule(s.spared(p, r, e), foreign_rows_deleted=Or(s.spared(p, r, e), x != proxy(p)))
    return And(is_its, rule(Not(s.kept(p, r, e)), deleted_under_guard=True)), s.minus("admission spared", p, r, e)
def delete_dead(s, rule, dead, p, r, e):
    """A proxy finds {dead} dead, and deletes the admission of {p} under {e}."""
    is_its = rule(p == dead, pid_without_backend_start=pid(p) == pid(dead))
    return And(rule(Not(s.alive(dead)), start_hidden=True), is_its), s.minus("admission", p, r, e)
def terminate(s, rule, p):
    """A drain signals {p}."""
    return s.alive(p), s.plus("ending", p)
def process_ends(s, rule, p):
    """{p} ends."""
    return s.alive(p), ended(s, p).minus("alive", p)
def mark_looks(s, rule, x, r, e):
    """Mark locks the epoch row FOR UPDATE, and checks that no living process is admitted below {e}."""
    named = rule(And(s.has_epoch(r), s.epoch(r) == e, Not(s.drained(r))), drain_and_mark_in_one_look=True,
                 mark_without_identity=And(s.has_epoch(r), Not(s.drained(r))))
    found = rule(nobody_below(s, r, e), no_drain=True, terminated_without_looking=nobody_below(s, r, e, s.ending),
                 prepared_looked_at_first=nothing_prepared(s, r))
    return And(named, found, none(lambda x, e: s.marking(x, r, e))), s.plus("marking", x, r, e)
def mark(s, rule, x, r, e):
    """Mark checks for prepared transactions. If there are none on the resource, the epoch is drained."""
    found = rule(nothing_prepared(s, r), prepared_ignored=True, prepared_looked_at_first=nobody_below(s, r, e))
    return s.marking(x, r, e), s.minus("marking", x, r, e).but(drained=lambda it: Or(s.drained(it), And(it == r, found)))
# Other changes of an epoch.
def acquire(s, rule, r, e):
    """A lease is acquired: with the lock held exclusively, Publish, drain and Mark in one step, to {e}."""
    return And(unlocked(rule, s, r), raises(rule, s, r, e), rule(nobody_below(s, r, e), acquired_before_drained=True),
               rule(nothing_prepared(s, r), acquired_beside_a_prepared=True)), s.put(r, e, True)
def reset(s, rule, r, e):
    """FENCE RESET takes the lock exclusively, and sets the epoch to {e}, not drained."""
    is_next = rule(generation(e) == generation(s.epoch(r)) + 1, reset_keeps_generation=generation(e) == generation(s.epoch(r)))
    return And(s.has_epoch(r), unlocked(rule, s, r), era(e) == s.current_era(r) + 1, is_next), s.put(r, e, False)
def delete_epoch(s, rule, r):
    """An operator deletes the epoch row, which no Admit and no Mark has locked. Pruning is a special case."""
    is_locked = Or(some(lambda p, e: s.admitting(p, r, e)), some(lambda x, e: s.marking(x, r, e)))
    return And(s.has_epoch(r), Not(is_locked)), s.minus("has_epoch", r).but(
        current_era=lambda it: If(it == r, s.current_era(it) + 1, s.current_era(it)))
# Crashes, and an asynchronous standby.
def crash_proxy(s, rule, x):
    """Proxy {x} crashes. The server still runs the messages that it has received."""
    return True, s.but(admitted=lambda *its: And(s.admitted(*its), proxy(its[0]) != x),
                       answer=lambda *its: And(s.answer(*its), proxy(its[0]) != x))
def crash_server(s, rule):
    """The server crashes: all processes end, and admissions are lost. Epochs are not."""
    return True, rule(s.restarted(), epochs_unlogged=s.restarted().but(has_epoch=lambda r: False))
def replicate(s, rule):
    """The standby replays everything."""
    return True, s.but(**{"standby_" + name: getattr(s, name) for name in LOGGED})
def promote(s, rule):
    """The standby is promoted: commits that it has not replayed are lost, and all processes of the old primary end."""
    after = s.restarted("standby_")
    return True, rule(after, old_primary_lives=after.but(alive=s.alive, written=s.written))

PARAMETERS = {name: list(inspect.signature(it).parameters) for name, it in globals().items() if inspect.isfunction(it)}
STEPS = {name: globals()[name] for name, its in PARAMETERS.items() if its[:2] == ["s", "rule"]}

# ---- The invariant ------------------------------------------------------------------------------------------------------
def active(s, p, r, e):
    """A write on the resource under the epoch may still commit: by the process, or as a prepared transaction."""
    return Or(And(s.alive(p), s.admission(p, r, e)), s.guarded(p, r, e), s.prepared(r, e))
def may_write(s, *key):
    """The session is admitted, or will be, or has writes under way."""
    return Or(s.admitted(*key), s.may_have_written(*key), And(s.answer(*key), Not(s.overtaken(*key))))
def not_newer(s, r, e): return If(s.has_epoch(r), Not(older(s.epoch(r), e)), era(e) < s.current_era(r))

PROMISES = {
    "order": lambda s: lambda r: Not(s.out_of_order(r)),
    "drained": lambda s: lambda p, r, e: Implies(And(s.has_epoch(r), s.drained(r), active(s, p, r, e)), e == s.epoch(r)),
    "unprepared": lambda s: lambda r: Not(s.prepared_past_gate(r))}
LEMMAS = PROMISES | {
    "all commits to come are under one epoch": lambda s: lambda p, q, r, e, f: Implies(
        And(active(s, p, r, e), active(s, q, r, f)), e == f),
    "no commit to come is newer than the epoch": lambda s: lambda p, r, e: Implies(active(s, p, r, e), not_newer(s, r, e)),
    "no commit to come is older than a commit": lambda s: lambda p, r, e, f: Implies(
        And(active(s, p, r, e), s.committed(r, f)), Not(older(e, f))),
    "no commit is newer than the epoch": lambda s: lambda r, e: Implies(s.committed(r, e), not_newer(s, r, e)),
    "the epoch is of the current era": lambda s: lambda r: Implies(s.has_epoch(r), era(s.epoch(r)) == s.current_era(r)),
    "living admissions of an older era are of a lower generation": lambda s: lambda p, r, e: Implies(
        And(s.alive(p), s.admission(p, r, e), s.has_epoch(r)), If(era(e) == s.current_era(r),
            generation(e) == generation(s.epoch(r)), generation(e) < generation(s.epoch(r)))),
    "an Admit under way has read the epoch in force": lambda s: lambda p, r, e: Implies(s.admitting(p, r, e), in_force(s, r, e)),
    "a guarded write is under the epoch in force, if any": lambda s: lambda p, r, e: Implies(
        s.guarded(p, r, e), And(s.alive(p), Or(Not(s.has_epoch(r)), in_force(s, r, e)))),
    "a writer's admission is kept by its proxy or the guard": lambda s: lambda p, r, e: Implies(
        s.written(p, r, e), And(s.alive(p), s.admission(p, r, e), Or(s.may_have_written(p, r, e), s.kept(p, r, e)))),
    "a session that may write has an admission": lambda s: lambda p, r, e: Implies(
        And(s.alive(p), may_write(s, p, r, e)), s.admission(p, r, e)),
    "a DELETE is on its way only for a session that may not write": lambda s: lambda p, r, e: Implies(
        s.spared(p, r, e), Not(may_write(s, p, r, e))),
    "a Mark under way has found nobody below its epoch": lambda s: lambda x, r, e, p, f: Implies(
        s.marking(x, r, e), And(s.has_epoch(r), Not(s.drained(r)), s.epoch(r) == e,
                                Implies(And(s.alive(p), s.admission(p, r, f)), Not(below(f, e))))),
    "a pid is that of one living process": lambda s: lambda p, q: Implies(And(s.alive(p), s.alive(q), pid(p) == pid(q)), p == q),
    "one Mark at a time holds the epoch row": lambda s: lambda x, y, r, e, f: Implies(
        And(s.marking(x, r, e), s.marking(y, r, f)), x == y),
    "a process that has not begun has nothing": lambda s: lambda p, r, e: Or(s.born(p), Not(Or(
        s.alive(p), *(getattr(s, name)(p, r, e) for name, (its, _) in RELATIONS.items() if its == "pre"))))}
CURRENT = list(LEMMAS)
LEMMAS |= {"standby: " + name: lambda s, it=it: it(s.restarted("standby_")) for name, it in LEMMAS.items()}

def initial(s):
    """No process and no write. Epochs, drained or not, and copied rows may be those of a dump."""
    empty = [name for name in [*LOGGED, *UNLOGGED, "born"] if name not in ("has_epoch", "epoch", "drained", "current_era")]
    return And(*(none(getattr(s, name), RELATIONS[name][0]) for name in empty), *(forall(
        lambda *its, n=name: getattr(s, "standby_" + n)(*its) == getattr(s, n)(*its), LOGGED[name][0]) for name in LOGGED),
        forall(LEMMAS["the epoch is of the current era"](s)))
def invariant(s): return And(*(forall(lemma(s)) for lemma in LEMMAS.values()))

# ---- For each precondition: its name, the mistake without it, and the steps to a broken promise -------------------------
RAISED, LOOKED, MARKED, RELEASED = "publish high; ", "mark_looks x high; ", "mark x high; ", "revoke old high; delete x old low; "
DRAINED, TAKEN_OVER, PREPARED = LOOKED + MARKED, "write_by_lock new high; commit new; ", "commit_prepared low is_last"
TOO_LATE, FIRST_NEW, FIRST_OLD = DRAINED + TAKEN_OVER + "commit old", "first_tokens new high; ", "first_tokens old low; "
SENT, PASSED = "begin_write old low; run old low; commit old", "write_by_admission old low; commit old"
FIRST, ADMITTED = "write_by_admission new high; commit new; ", "admit_commits old low; "
ADMIT_NEW, ADMIT_OLD = "admit new high; admit_commits new high; ", "admit old low; " + ADMITTED
LATE = "revoke old high; admit_replies old low; delete x old low; "
BROKEN = {name: (reason, "".join(steps)) for name, reason, *steps in [
    ("no_drain", "Mark does not look at the processes", TOO_LATE),
    ("terminated_without_looking", "a signalled process counts as dead", TOO_LATE),
    ("drain_and_mark_in_one_look", "Mark looks before Publish", LOOKED, ADMITTED, RAISED, MARKED, TAKEN_OVER, PASSED),
    ("mark_without_identity", "Mark names no epoch", "mark_looks x middle; mark x middle; ", TAKEN_OVER, "commit old"),
    ("prepared_ignored", "Mark does not look for prepared transactions", DRAINED, TAKEN_OVER, PREPARED),
    ("prepared_looked_at_first", "Mark looks at the processes last",
     LOOKED, "prepare old; process_ends old; ", MARKED, TAKEN_OVER, PREPARED),
    ("missing_row_admits", "a missing epoch row counts as one in force", ADMIT_OLD, ADMIT_NEW, FIRST, PASSED),
    ("comparison_in_memory_only", "Admit does not compare with the epoch", TAKEN_OVER, ADMIT_OLD, PASSED),
    ("admits_before_drained", "Admit does not wait for Mark", ADMIT_NEW, FIRST, "commit old"),
    ("for_key_share", "Publish does not wait for an Admit", RAISED, DRAINED, ADMITTED, TAKEN_OVER, PASSED),
    ("guard_without_lock", "Publish does not wait for a guarded write", RAISED, TOO_LATE),
    ("guard_before_drained", "the guard does not wait for Mark", TAKEN_OVER, "commit old"),
    ("copied_row_counts", "the guard takes a row of another database for an admission", TAKEN_OVER, PASSED),
    ("epoch_lowered", "an epoch may be lowered", TAKEN_OVER, "acquire low; write_by_lock old low; commit old"),
    ("generation_starts_again", "a new epoch is in generation 1", RAISED, TOO_LATE),
    ("reset_keeps_generation", "a reset keeps the generation", "reset high; ", TOO_LATE),
    ("writer_released", "a drain releases a session that has written", RELEASED, TOO_LATE),
    ("busy_session_released", "a drain releases a busy session", RELEASED, DRAINED, TAKEN_OVER, "run old low; commit old"),
    ("open_transaction_taken_for_idle", "a session in a transaction counts as idle", "rest old; ", RELEASED, TOO_LATE),
    ("floors_dropped", "a late answer to an Admit counts", LATE, DRAINED, TAKEN_OVER, SENT),
    ("first_token_without_a_floor", "a late answer to a first token counts", FIRST_OLD, RAISED, LATE, DRAINED, TAKEN_OVER, SENT),
    ("first_tokens_mixed_up", "a session takes the answer of another", "admit_replies old low; ", DRAINED, TAKEN_OVER, SENT),
    ("revoked_too_late", "a drain deletes an admission before it revokes the session", RELEASED, DRAINED, TAKEN_OVER, SENT),
    ("admission_outlives_reset", "a revocation compares tokens without generations", RELEASED, DRAINED, TAKEN_OVER, SENT),
    ("foreign_rows_deleted", "a proxy deletes admissions of another proxy's sessions", "delete x old low; ", TOO_LATE),
    ("deleted_under_guard", "a proxy deletes an admission that the guard has locked", RELEASED, TOO_LATE),
    ("version_ignored", "a late DELETE takes a later version of the admission",
     "admit_commits old low; admit_replies old low; begin_write old low; run old low; delete x old low; publish high; ", TOO_LATE),
    ("start_hidden", "a living process counts as dead", "delete_dead old old low; ", TOO_LATE),
    ("pid_without_backend_start", "a dead process is known by its pid alone", "delete_dead dead old low; ", TOO_LATE),
    ("writes_not_held_back", "a write is forwarded before the session is admitted", TAKEN_OVER, SENT),
    ("first_token_past_an_epoch", "a first token makes its epoch over another", TAKEN_OVER, FIRST_OLD, PASSED),
    ("first_token_without_lock", "a first token does not try the lock", FIRST_NEW, FIRST, "commit old"),
    ("first_token_beside_an_admission", "a first token ignores admissions", FIRST_NEW, FIRST, "commit old"),
    ("first_token_beside_a_prepared", "a first token ignores prepared transactions", FIRST_NEW, FIRST, PREPARED),
    ("acquired_before_drained", "acquire ignores admissions", "acquire high; ", TAKEN_OVER, "commit old"),
    ("acquired_beside_a_prepared", "acquire ignores prepared transactions", "acquire high; ", TAKEN_OVER, PREPARED),
    ("prepare_allowed", "the gate lets a session prepare a fenced write", "prepare old"),
    ("epochs_unlogged", "a crash loses epochs", "crash_server; connect old; first_tokens old low; ", PASSED),
    ("old_primary_lives", "processes of the old primary write beside the new one", "promote; publish high; ", TOO_LATE)]}
TAKEOVER = ("connect old; first_tokens old low; admit_replies old low; " + SENT + "; rest old; connect new; publish high; "
            + RELEASED + DRAINED + ADMIT_NEW + "admit_replies new high; begin_write new high; run new high; commit new")

# ---- The checks ---------------------------------------------------------------------------------------------------------
class Rules:
    """The preconditions. One may be missing."""
    def __init__(self, missing=None):
        self.missing, self.names = missing, set()
    def __call__(self, right, **wrong):
        self.names |= wrong.keys()
        return wrong.get(self.missing, right)

def read(line):
    """A step of a history: its name, and its arguments by parameter. A history is about one resource."""
    name, *arguments = line.split()
    left = iter(arguments or [it for it in PARAMETERS[name][2:] if it != "r"])
    return name, {it: it if it == "r" else next(left) for it in PARAMETERS[name][2:]}
def take(line, state, rule, values):
    name, arguments = read(line)
    return STEPS[name](state, rule, *(values[it] for it in arguments.values()))

NAMED = {name: z3.Const(name, sort) for name, sort in SORT.items()}
RANGE = {"epoch": Epoch, "standby_epoch": Epoch, "current_era": z3.IntSort(), "standby_current_era": z3.IntSort()}
START = State({name: z3.Function(name, *(SORT[it] for it in its), RANGE.get(name, z3.BoolSort()))
               for name, (its, _) in RELATIONS.items()})

def solver(*formulas):
    found = z3.Solver()
    found.set("timeout", 60_000)
    found.add(forall(lambda e, f: Implies(And(era(e) == era(f), generation(e) == generation(f), token(e) == token(f)), e == f)),
              forall(lambda e: And(era(e) >= 0, generation(e) >= 1, token(e) >= 1)),
              z3.Distinct(NAMED["old"], NAMED["new"], NAMED["dead"]), *formulas)
    return found

def find(start, rule, steps, end):
    """The first state of a history, as a model. Prefers a history within one generation and era."""
    r, old, low, high = (NAMED[it] for it in ("r", "old", "low", "high"))
    states, needed = [START], [start(START), older(low, high), "low" in steps or has_written(START, old, r, low)]
    for line in steps.split("; "):
        formula, state = take(line, states[-1], rule, NAMED)
        states, needed = [*states, state], [*needed, formula]
    for preferred in And(generation(low) == generation(high), era(low) == era(high)), True:
        found = solver(preferred, *needed, *end(*states[-2:]))
        if found.check() == z3.sat:
            return found.model()

def breaks(before, after):
    """The last step breaks the promise `order` or `unprepared`."""
    def is_kept(s): return And(Not(s.out_of_order(NAMED["r"])), Not(s.prepared_past_gate(NAMED["r"])))
    return is_kept(before), Not(is_kept(after))

def tell(model, rule, steps):
    """Replays a history without Z3, and prints it in numbered sentences."""
    global replayed
    elements = {str(it): model.get_universe(it) or [model.eval(z3.Const("any", it), True)] for it in SORTS}
    def value(term):
        it = model.eval(term, True)
        return it.as_long() if z3.is_int_value(it) else z3.is_true(it) if z3.is_bool(it) else str(it)
    def table(function, names):
        keys = itertools.product(*(elements[str(SORT[it])] for it in names))
        return {tuple(map(str, key)): value(function(*key)) for key in keys}
    def state(): return State({name: lambda *its, values=values: values[its] for name, values in tables.items()})
    tables = {name: table(getattr(START, name), its) for name, (its, _) in RELATIONS.items()}
    constants = {name: table(globals()[name], its) for name, (its, _) in CONSTANT.items()}
    named = {name: value(it) for name, it in NAMED.items()}
    used = {it for line in steps.split("; ") for it in read(line)[1].values()} - {"is_last"} | {"r"}
    tokens, generations = (sorted(set(constants[it].values())) for it in ("token", "generation"))
    shown = {named[it]: it for it in used} | {e: f"token {1 + tokens.index(constants['token'][e,])}" + (
        f" of generation {constants['generation'][e,]}" if len(generations) > 1 else "") for e, in constants["token"]}
    epoch, drained, has_epoch = (tables[it][named["r"],] for it in ("epoch", "drained", "has_epoch"))
    facts = [f"the epoch of r is {shown[epoch]}, {'' if drained else 'not '}drained" if has_epoch else "r has no epoch"]
    facts += [text.format(*(shown[it] for it in key)) for name, (_, text) in RELATIONS.items()
              for key, holds in tables[name].items() if text and holds and all(it in shown for it in key)]
    print(f"   1. Before: {'; '.join(facts)}.")
    replayed, known = {sort: [str(it) for it in its] for sort, its in elements.items()} | constants, set()
    for number, line in enumerate(steps.split("; "), 2):
        needed, after = take(line, state(), rule, named)
        assert needed, f"Z3 is wrong: {line}"
        tables = {name: {key: getattr(after, name)(*key) for key in its} for name, its in tables.items()}
        name, arguments = read(line)
        text = inspect.getdoc(STEPS[name]).format(**{it: shown.get(named[its], its) for it, its in arguments.items()})
        print(f"   {number}. {text[0].upper()}{text[1:]}")
        for lemma in [it for it in CURRENT if it not in known and not forall(LEMMAS[it](state()))]:
            print(f"      {'This breaks the promise' if lemma in PROMISES else 'No longer true'}: {lemma}.")
            known.add(lemma)
    assert known & {"order", "unprepared"}, "Z3 is wrong: no promise is broken"
    replayed = None

def main(wanted):
    if not set(wanted) <= {"--stories", *BROKEN}: sys.exit(__doc__)
    failed, rule = [], Rules()
    def report(name, is_right, text="holds"):
        print(f"{name}: {text if is_right else 'FAILS'}", flush=True)
        failed.extend([name] * (not is_right))
    if wanted in ([], ["--stories"]):
        report("the initial states satisfy the lemmas", solver(initial(START), Not(invariant(START))).check() == z3.unsat)
        for name in STEPS:
            needed, after = take(name, START, rule, NAMED)
            before = solver(invariant(START), needed)
            report(f"{name} can be taken", before.check() == z3.sat)
            for lemma, body in LEMMAS.items():
                before.push()
                before.add(Not(forall(body(after))))
                if before.check() != z3.unsat:
                    report(f"{name} keeps: {lemma}", False)
                before.pop()
            report(f"{name} keeps the lemmas", not any(it.startswith(f"{name} keeps") for it in failed))
        def both(_, s): return s.committed(NAMED["r"], NAMED["low"]), s.committed(NAMED["r"], NAMED["high"])
        report("a takeover can happen", find(initial, rule, TAKEOVER, both))
        report("the promises alone are not inductive", find(lambda s: True, rule, "commit old", breaks))
        report("every precondition is named below", rule.names == BROKEN.keys())
    for name, (reason, steps) in BROKEN.items():
        if wanted in ([], ["--stories"], [name]):
            model = find(invariant, Rules(name), steps, breaks)
            report(f"without {name}", model, f"breaks: {reason}")
            if model and wanted:
                tell(model, Rules(name), steps)
    if failed:
        sys.exit(f"{len(failed)} failed: {'; '.join(failed)}")

if __name__ == "__main__":
    main(sys.argv[1:])
