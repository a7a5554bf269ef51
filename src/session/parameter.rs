//! Follows `lease.fence` through SET, SET LOCAL, RESET, transactions and savepoints.
//!
//! Owns what the proxy believes the server's `current_setting('lease.fence', true)` to be. Fed by
//! replies, so that it says what did happen. Must never guess: what cannot be followed is
//! [`Value::Unknown`], and the server is asked. PostgreSQL documentation, reference page of SET.

use crate::fence::value::FenceValue;
use crate::statement::{ParameterEffect, Statement, TransactionEffect};
use crate::wire::message::Status;

/// Savepoints that are remembered; a rollback to an older one makes the value unknown.
const MAX_SAVEPOINTS: usize = 1000;

/// What their values may hold, in bytes.
const HEAVIEST: usize = 4 << 20;

/// The value of the parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// As the server has it.
    Known(FenceValue),
    /// The server has a value that is no token. Only functions and ALTER ROLE can bring it about.
    Invalid,
    /// The server has to be asked.
    Unknown,
}

impl Value {
    /// From the server's text; None is NULL: never set.
    pub fn read(text: Option<&str>) -> Value {
        FenceValue::parse(text.unwrap_or_default()).map_or(Value::Invalid, Value::Known)
    }
}

/// The parameter in one session.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// What RESET returns to.
    startup: Value,
    now: Levels,
    /// What a rollback returns to: first for the transaction, then for each savepoint.
    snapshots: Vec<Snapshot>,
    /// This transaction may have set it, so that what is there now is not what was there before.
    touched: bool,
    /// This transaction did what cannot be followed. Its COMMIT may do so again: it runs cursors WITH HOLD to their end.
    unfollowed: bool,
    failed: bool,
    errored: bool,
}

/// SET LOCAL hides the session's value until the transaction ends.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Levels {
    current: Value,
    session: Value,
}

#[derive(Clone, Debug)]
struct Snapshot {
    savepoint: Option<String>,
    levels: Levels,
}

impl Parameter {
    /// At the start of a session.
    pub fn new(startup: Value) -> Self {
        let now = Levels { current: startup.clone(), session: startup.clone() };
        let snapshots = Vec::new();
        Parameter { startup, now, snapshots, touched: false, unfollowed: false, failed: false, errored: false }
    }

    /// What a statement sees that runs now.
    pub fn current(&self) -> &Value {
        &self.now.current
    }

    /// In a failed transaction, in which the server refuses everything but its end.
    pub fn failed(&self) -> bool {
        self.failed
    }

    /// The server will refuse the statement, because the transaction has failed and it does not end that.
    pub fn refuses(&self, statement: &Statement) -> bool {
        let ends_failure = matches!(
            statement.transaction,
            TransactionEffect::Commit
                | TransactionEffect::PrepareTransaction
                | TransactionEffect::Rollback
                | TransactionEffect::RollbackTo(_)
        );
        self.failed && !ends_failure
    }

    /// True when an error or rollback could not change the value.
    pub fn is_settled(&self) -> bool {
        self.snapshots.iter().all(|snapshot| snapshot.levels == self.now)
            && self.now.current == self.now.session
            && self.now.current != Value::Unknown
            && !self.unfollowed
    }

    /// The server was asked.
    pub fn learn(&mut self, value: Value) {
        self.now.current = value;
        if !self.touched {
            self.now.session = self.now.current.clone();
            self.snapshots.iter_mut().for_each(|snapshot| snapshot.levels = self.now.clone());
        }
    }

    /// It may be anything now.
    pub fn forget(&mut self) {
        self.touched = true;
        self.unfollowed = true;
        self.now = Levels { current: Value::Unknown, session: Value::Unknown };
    }

    /// It may be anything now, and so may be what a rollback returns to.
    pub fn forget_all(&mut self) {
        self.forget();
        self.forget_snapshots();
    }

    fn forget_snapshots(&mut self) {
        let unknown = Levels { current: Value::Unknown, session: Value::Unknown };
        self.snapshots.iter_mut().for_each(|snapshot| snapshot.levels = unknown.clone());
    }

    /// A statement succeeded. `rolled_back`: the server answered a COMMIT with ROLLBACK.
    pub fn completed(&mut self, statement: &Statement, rolled_back: bool) {
        self.begin();
        let touched = self.touched;
        self.touched |= statement.parameter != ParameterEffect::None;
        match &statement.parameter {
            ParameterEffect::None => (),
            ParameterEffect::Set { value, local } => self.set(Value::read(Some(value)), *local),
            ParameterEffect::Reset { local } => self.set(self.startup.clone(), *local),
            ParameterEffect::ResetAll => {
                self.set(self.startup.clone(), false);
                if touched {
                    // It passes over what SET LOCAL TO DEFAULT has reset, though only until the transaction ends.
                    self.now.session = Value::Unknown;
                }
                if statement.kind == "DISCARD ALL" {
                    // In a pipeline it commits at once, except on older servers: an error may not take it back.
                    self.forget_snapshots();
                }
            }
            // Code may commit while it runs: what a rollback returns to is not known either.
            ParameterEffect::Unknown if statement.opaque.is_some() => self.forget_all(),
            ParameterEffect::Unknown => self.forget(),
        }
        match &statement.transaction {
            TransactionEffect::None | TransactionEffect::Begin => (),
            TransactionEffect::Commit if !rolled_back => self.commit(),
            // What a prepared transaction set stays, as after a commit.
            TransactionEffect::PrepareTransaction if !rolled_back => self.commit(),
            TransactionEffect::Commit | TransactionEffect::PrepareTransaction | TransactionEffect::Rollback => {
                self.roll_back();
            }
            TransactionEffect::Savepoint(name) => self.snapshot(Some(name.clone())),
            TransactionEffect::Release(name) => {
                // One that is not remembered is older than all savepoints that are.
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

    /// A statement was planned, which can call its functions.
    pub fn planned(&mut self, statement: &Statement) {
        if statement.parameter == ParameterEffect::Unknown {
            self.begin();
            self.forget();
        }
    }

    /// Every statement runs in a transaction, if only until its own end.
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

    fn set(&mut self, value: Value, local: bool) {
        if !local {
            self.now.session = value.clone();
        }
        self.now.current = value;
    }

    fn snapshot(&mut self, savepoint: Option<String>) {
        while self.snapshots.len() > MAX_SAVEPOINTS || self.snapshots.len() > 1 && self.weight() > HEAVIEST {
            self.snapshots.remove(1);
        }
        self.snapshots.push(Snapshot { savepoint, levels: self.now.clone() });
    }

    /// The bytes that the values of savepoints keep in memory, about.
    fn weight(&self) -> usize {
        let beside = |(before, after): (&Value, &Value)| match (before, after) {
            (Value::Known(before), Value::Known(after)) => after.weight_beside(before),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn token(token: i64) -> Value {
        Value::Known(FenceValue::One(token))
    }

    fn set(value: &str, local: bool) -> Statement {
        Statement { parameter: ParameterEffect::Set { value: value.into(), local }, ..Statement::default() }
    }

    fn transaction(transaction: TransactionEffect) -> Statement {
        Statement { transaction, ..Statement::default() }
    }

    fn run(parameter: &mut Parameter, statements: &[Statement], status: Status) {
        statements.iter().for_each(|statement| parameter.completed(statement, false));
        parameter.ready(status);
    }

    #[test]
    fn set_lasts_and_set_local_does_not() {
        let mut parameter = Parameter::new(token(1));
        run(&mut parameter, &[set("2", false)], Status::Idle);
        assert_eq!(parameter.current(), &token(2));
        run(&mut parameter, &[transaction(TransactionEffect::Begin), set("3", true)], Status::Transaction);
        assert_eq!(parameter.current(), &token(3));
        assert!(!parameter.is_settled());
        run(&mut parameter, &[transaction(TransactionEffect::Commit)], Status::Idle);
        assert_eq!(parameter.current(), &token(2));
        assert!(parameter.is_settled());
    }

    #[test]
    fn set_after_set_local_stays() {
        let mut parameter = Parameter::new(token(1));
        let statements = [transaction(TransactionEffect::Begin), set("3", true), set("4", false)];
        run(&mut parameter, &statements, Status::Transaction);
        run(&mut parameter, &[transaction(TransactionEffect::Commit)], Status::Idle);
        assert_eq!(parameter.current(), &token(4));
    }

    #[test]
    fn rollback_and_savepoints_return() {
        let mut parameter = Parameter::new(token(1));
        let begin = [transaction(TransactionEffect::Begin), set("2", false)];
        run(&mut parameter, &begin, Status::Transaction);
        let inner = [transaction(TransactionEffect::Savepoint("s".into())), set("3", false)];
        run(&mut parameter, &inner, Status::Transaction);
        run(&mut parameter, &[transaction(TransactionEffect::RollbackTo("s".into()))], Status::Transaction);
        assert_eq!(parameter.current(), &token(2));
        run(
            &mut parameter,
            &[set("3", false), transaction(TransactionEffect::Release("s".into()))],
            Status::Transaction,
        );
        assert_eq!(parameter.current(), &token(3));
        run(&mut parameter, &[transaction(TransactionEffect::Rollback)], Status::Idle);
        assert_eq!(parameter.current(), &token(1));
    }

    #[test]
    fn an_error_takes_back_the_implicit_transaction() {
        let mut parameter = Parameter::new(token(1));
        parameter.completed(&set("2", false), false);
        parameter.error();
        parameter.ready(Status::Idle);
        assert_eq!(parameter.current(), &token(1));
    }

    #[test]
    fn a_commit_that_rolled_back() {
        let mut parameter = Parameter::new(token(1));
        run(&mut parameter, &[transaction(TransactionEffect::Begin), set("2", false)], Status::Transaction);
        parameter.completed(&transaction(TransactionEffect::Commit), true);
        parameter.ready(Status::Idle);
        assert_eq!(parameter.current(), &token(1));
    }

    #[test]
    fn what_cannot_be_followed_is_unknown_until_learned() {
        let mut parameter = Parameter::new(token(1));
        let unknown = Statement { parameter: ParameterEffect::Unknown, ..Statement::default() };
        run(&mut parameter, &[unknown], Status::Idle);
        assert_eq!(parameter.current(), &Value::Unknown);
        parameter.learn(token(9));
        assert!(parameter.is_settled());
        run(&mut parameter, &[transaction(TransactionEffect::RollbackTo("never seen".into()))], Status::Transaction);
        assert_eq!(parameter.current(), &Value::Unknown);
    }

    #[test]
    fn what_cannot_be_followed_may_happen_again_at_the_commit() {
        let mut parameter = Parameter::new(token(1));
        let begin = transaction(TransactionEffect::Begin);
        let unknown = Statement { parameter: ParameterEffect::Unknown, ..Statement::default() };
        run(&mut parameter, &[begin.clone(), unknown.clone(), set("1", false)], Status::Transaction);
        assert_eq!((parameter.current(), parameter.is_settled()), (&token(1), false));
        run(&mut parameter, &[transaction(TransactionEffect::Commit)], Status::Idle);
        assert_eq!(parameter.current(), &Value::Unknown);
        parameter.learn(token(1));
        run(&mut parameter, &[begin, unknown, transaction(TransactionEffect::Rollback)], Status::Idle);
        assert_eq!(parameter.current(), &token(1));
    }

    #[test]
    fn an_answer_counts_for_the_session_where_the_transaction_has_not_touched_it() {
        let mut parameter = Parameter::new(Value::Unknown);
        let begin = [transaction(TransactionEffect::Begin), transaction(TransactionEffect::Savepoint("s".into()))];
        run(&mut parameter, &begin, Status::Transaction);
        parameter.learn(token(1));
        run(&mut parameter, &[transaction(TransactionEffect::RollbackTo("s".into()))], Status::Transaction);
        assert_eq!(parameter.current(), &token(1));
        parameter.forget();
        parameter.learn(token(2));
        run(&mut parameter, &[transaction(TransactionEffect::Commit)], Status::Idle);
        assert_eq!(parameter.current(), &Value::Unknown);
    }

    #[test]
    fn the_values_of_savepoints_have_a_bound() {
        let list: Vec<_> = (0..8_000).map(|number| format!("s{number}=1")).collect();
        let mut parameter = Parameter::new(token(1));
        for number in 0..100 {
            parameter.completed(&set(&format!("{}, last={}", list.join(","), number + 1), true), false);
            parameter.completed(&transaction(TransactionEffect::Savepoint(format!("s{number}"))), false);
        }
        assert!(parameter.weight() < 2 * HEAVIEST, "{}", parameter.weight());
        parameter.completed(&transaction(TransactionEffect::RollbackTo("s99".into())), false);
        assert_ne!(parameter.current(), &Value::Unknown);
        parameter.completed(&transaction(TransactionEffect::RollbackTo("s0".into())), false);
        assert_eq!(parameter.current(), &Value::Unknown);
    }

    #[test]
    fn a_forgotten_savepoint_takes_the_younger_ones_with_it() {
        let mut parameter = Parameter::new(token(1));
        parameter.completed(&transaction(TransactionEffect::Savepoint("young".into())), false);
        parameter.completed(&transaction(TransactionEffect::Savepoint("forgotten".into())), false);
        for index in 0..MAX_SAVEPOINTS {
            let name = if index == 0 { "young" } else { "other" };
            parameter.completed(&transaction(TransactionEffect::Savepoint(name.into())), false);
        }
        parameter.completed(&set("2", false), false);
        parameter.completed(&transaction(TransactionEffect::Release("forgotten".into())), false);
        parameter.completed(&transaction(TransactionEffect::RollbackTo("young".into())), false);
        assert_eq!(parameter.current(), &Value::Unknown);
    }
}
