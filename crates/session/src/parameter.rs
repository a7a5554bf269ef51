//! Follows `lease.fence` through SET, SET LOCAL, RESET, transactions and savepoints.
//!
//! Owns the proxy's copy of the server's `current_setting('lease.fence', true)`, which follows the server's replies.
//! Must never guess: a value that cannot be followed is [`ParameterValue::Unknown`], and the proxy queries the server.
//! Source: PostgreSQL documentation, reference page of SET.

use fencegate_fence::value::FenceValue;
use fencegate_statement::{ParameterEffect, Statement, StatementKind, TransactionEffect};
use fencegate_wire::message::Status;

/// Maximum number of remembered savepoints. A rollback to an older one makes the value unknown.
const MAX_SAVEPOINTS: usize = 1000;

/// Memory that the values of all savepoints may hold, in bytes.
const MAX_WEIGHT: usize = 4 << 20;

/// The value of the parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParameterValue {
    /// The server's value.
    Known(FenceValue),
    /// The server has a value that is not a token. Only functions and ALTER ROLE can cause this.
    Invalid,
    /// The value is unknown until the server is queried.
    Unknown,
}

impl ParameterValue {
    /// Reads the server's text. None is NULL: never set.
    pub fn read(text: Option<&str>) -> ParameterValue {
        FenceValue::parse(text.unwrap_or_default()).map_or(ParameterValue::Invalid, ParameterValue::Known)
    }
}

/// The parameter in one session.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// The value that RESET restores.
    startup: ParameterValue,
    now: Levels,
    /// Values that a rollback restores: first for the transaction, then for each savepoint.
    snapshots: Vec<Snapshot>,
    /// This transaction may have set the parameter, so the current value may differ from the one before.
    touched: bool,
    /// This transaction made changes that the proxy cannot track. Its COMMIT may make more, because it runs cursors
    /// WITH HOLD to their end.
    unfollowed: bool,
    failed: bool,
    errored: bool,
}

/// SET LOCAL hides the session's value until the transaction ends.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Levels {
    current: ParameterValue,
    session: ParameterValue,
}

#[derive(Clone, Debug)]
struct Snapshot {
    savepoint: Option<String>,
    levels: Levels,
}

impl Parameter {
    /// The parameter at the start of a session.
    pub fn new(startup: ParameterValue) -> Self {
        let now = Levels { current: startup.clone(), session: startup.clone() };
        let snapshots = Vec::new();
        Parameter { startup, now, snapshots, touched: false, unfollowed: false, failed: false, errored: false }
    }

    /// The value that a statement sees if it runs now.
    pub fn current(&self) -> &ParameterValue {
        &self.now.current
    }

    /// Returns true in a failed transaction, in which the server accepts only statements that end it.
    pub fn failed(&self) -> bool {
        self.failed
    }

    /// Returns true if the server will refuse the statement: the transaction has failed, and the statement does not end it. A
    /// text that was not read may contain the statement that ends it.
    pub fn refuses(&self, statement: &Statement) -> bool {
        use StatementKind::{Portal, ReplicationCommand, Unspecified};
        let is_unknown =
            statement.opaque.is_some() && matches!(statement.kind, Unspecified | Portal | ReplicationCommand);
        self.failed && !ends_failure(statement) && !is_unknown
    }

    /// Returns true if an error or rollback cannot change the value.
    pub fn is_settled(&self) -> bool {
        self.snapshots.iter().all(|snapshot| snapshot.levels == self.now)
            && self.now.current == self.now.session
            && self.now.current != ParameterValue::Unknown
            && !self.unfollowed
    }

    /// Records the server's answer to a query for the value.
    pub fn learn(&mut self, value: ParameterValue) {
        self.now.current = value;
        if !self.touched {
            self.now.session = self.now.current.clone();
            self.snapshots.iter_mut().for_each(|snapshot| snapshot.levels = self.now.clone());
        }
    }

    /// Records that the value is unknown.
    pub fn forget(&mut self) {
        self.touched = true;
        self.unfollowed = true;
        self.now = Levels { current: ParameterValue::Unknown, session: ParameterValue::Unknown };
    }

    /// Marks the value and the values restored by a rollback as unknown.
    pub fn forget_all(&mut self) {
        self.forget();
        self.forget_snapshots();
    }

    fn forget_snapshots(&mut self) {
        let unknown = Levels { current: ParameterValue::Unknown, session: ParameterValue::Unknown };
        self.snapshots.iter_mut().for_each(|snapshot| snapshot.levels = unknown.clone());
    }

    /// A statement succeeded. `rolled_back`: the server answered a COMMIT with ROLLBACK.
    pub fn completed(&mut self, statement: &Statement, rolled_back: bool) {
        if self.failed && !ends_failure(statement) {
            // It contained the statement that ended the failed transaction: its text was not read or not judged.
            self.failed = false;
            self.forget_all();
        }
        if matches!((&statement.parameter, &statement.transaction), (ParameterEffect::None, TransactionEffect::None)) {
            // A rollback restores the same value without a snapshot.
            return;
        }
        self.begin();
        let touched = self.touched;
        self.touched |= statement.parameter != ParameterEffect::None;
        match &statement.parameter {
            ParameterEffect::None => (),
            ParameterEffect::Set { value, local } => self.set(ParameterValue::read(Some(value)), *local),
            ParameterEffect::Reset { local } => self.set(self.startup.clone(), *local),
            ParameterEffect::ResetAll => {
                self.set(self.startup.clone(), false);
                if touched {
                    // SET ignores a value that SET LOCAL TO DEFAULT has reset, but only until the transaction ends.
                    self.now.session = ParameterValue::Unknown;
                }
                if statement.kind == StatementKind::DiscardAll {
                    // In a pipeline the statement commits at once, except on older servers. A later error may not roll
                    // it back.
                    self.forget_snapshots();
                }
            }
            // Code may commit while it runs, so the value that a rollback restores is unknown as well.
            ParameterEffect::Unknown if statement.opaque.is_some() => self.forget_all(),
            ParameterEffect::Unknown => self.forget(),
        }
        match &statement.transaction {
            TransactionEffect::None | TransactionEffect::Begin => (),
            TransactionEffect::Commit if !rolled_back => self.commit(),
            // The value that a prepared transaction has set stays, as after a commit.
            TransactionEffect::PrepareTransaction if !rolled_back => self.commit(),
            // Outside a transaction block, the server also answers with ROLLBACK, but commits.
            TransactionEffect::PrepareTransaction if !self.failed => self.forget_all(),
            TransactionEffect::Commit | TransactionEffect::PrepareTransaction | TransactionEffect::Rollback => {
                self.roll_back();
            }
            TransactionEffect::Savepoint(name) => self.snapshot(Some(name.clone())),
            TransactionEffect::Release(name) => {
                // A savepoint that is not remembered is older than all remembered ones.
                self.snapshots.truncate(self.find(name).unwrap_or(1));
            }
            TransactionEffect::RollbackTo(name) => {
                self.failed = false;
                match self.find(name) {
                    Some(index) => {
                        self.snapshots.truncate(index + 1);
                        self.now = self.snapshots[index].levels.clone();
                    }
                    None => {
                        self.snapshots.truncate(1);
                        self.forget();
                    }
                }
            }
        }
    }

    /// Records that a statement was planned: planning can call its functions.
    pub fn planned(&mut self) {
        self.begin();
        self.forget();
    }

    /// Begins a transaction, if none is open: every statement runs in one, if only its own.
    fn begin(&mut self) {
        if self.snapshots.is_empty() {
            self.snapshot(None);
        }
    }

    /// The server reported an error.
    pub fn error(&mut self) {
        self.errored = true;
    }

    /// ReadyForQuery: implicit transactions have ended.
    pub fn ready(&mut self, status: Status) {
        self.failed = status == Status::Failed;
        if status == Status::Idle {
            if self.errored { self.roll_back() } else { self.commit() }
        }
        self.errored = false;
    }

    fn set(&mut self, value: ParameterValue, local: bool) {
        if !local {
            self.now.session = value.clone();
        }
        self.now.current = value;
    }

    fn snapshot(&mut self, savepoint: Option<String>) {
        while self.snapshots.len() > MAX_SAVEPOINTS || self.snapshots.len() > 1 && self.weight() > MAX_WEIGHT {
            self.snapshots.remove(1);
        }
        self.snapshots.push(Snapshot { savepoint, levels: self.now.clone() });
    }

    /// Approximate memory that the values of savepoints hold, in bytes.
    fn weight(&self) -> usize {
        let beside = |(before, after): (&ParameterValue, &ParameterValue)| match (before, after) {
            (ParameterValue::Known(before), ParameterValue::Known(after)) => after.weight_beside(before),
            _ => 0,
        };
        let pairs = self.snapshots.windows(2).map(|pair| (&pair[0].levels, &pair[1].levels));
        let weight = |(before, after): (&Levels, &Levels)| {
            beside((&before.current, &after.current)) + beside((&before.session, &after.session))
        };
        pairs.map(weight).sum()
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.snapshots.iter().rposition(|snapshot| snapshot.savepoint.as_deref() == Some(name))
    }

    fn commit(&mut self) {
        if self.unfollowed {
            self.forget();
        }
        self.end();
    }

    fn roll_back(&mut self) {
        if let Some(base) = self.snapshots.first() {
            self.now = base.levels.clone();
        }
        self.end();
    }

    fn end(&mut self) {
        self.now.current = self.now.session.clone();
        self.snapshots.clear();
        self.touched = false;
        self.unfollowed = false;
        self.failed = false;
    }
}

/// Returns true if the server accepts the statement in a failed transaction.
fn ends_failure(statement: &Statement) -> bool {
    statement.ends_transaction() || matches!(statement.transaction, TransactionEffect::RollbackTo(_))
}

#[cfg(test)]
mod tests;
