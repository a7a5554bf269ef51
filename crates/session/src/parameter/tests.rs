//! The value of `lease.fence` after each statement, as the proxy knows it.

use super::*;
use fencegate_statement::OpaqueReason;

fn token(token: i64) -> ParameterValue {
    ParameterValue::Known(FenceValue::One(token))
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
fn set_local_ends_with_the_transaction() {
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
fn set_after_set_local_outlasts_the_transaction() {
    let mut parameter = Parameter::new(token(1));
    let statements = [transaction(TransactionEffect::Begin), set("3", true), set("4", false)];
    run(&mut parameter, &statements, Status::Transaction);
    run(&mut parameter, &[transaction(TransactionEffect::Commit)], Status::Idle);
    assert_eq!(parameter.current(), &token(4));
}

#[test]
fn rollback_restores_the_value() {
    let mut parameter = Parameter::new(token(1));
    let begin = [transaction(TransactionEffect::Begin), set("2", false)];
    run(&mut parameter, &begin, Status::Transaction);
    let inner = [transaction(TransactionEffect::Savepoint("s".into())), set("3", false)];
    run(&mut parameter, &inner, Status::Transaction);
    run(&mut parameter, &[transaction(TransactionEffect::RollbackTo("s".into()))], Status::Transaction);
    assert_eq!(parameter.current(), &token(2));
    run(&mut parameter, &[set("3", false), transaction(TransactionEffect::Release("s".into()))], Status::Transaction);
    assert_eq!(parameter.current(), &token(3));
    run(&mut parameter, &[transaction(TransactionEffect::Rollback)], Status::Idle);
    assert_eq!(parameter.current(), &token(1));
}

#[test]
fn an_error_rolls_back_the_implicit_transaction() {
    let mut parameter = Parameter::new(token(1));
    parameter.completed(&set("2", false), false);
    parameter.error();
    parameter.ready(Status::Idle);
    assert_eq!(parameter.current(), &token(1));
}

#[test]
fn a_commit_that_rolled_back_restores_the_value() {
    let mut parameter = Parameter::new(token(1));
    run(&mut parameter, &[transaction(TransactionEffect::Begin), set("2", false)], Status::Transaction);
    parameter.completed(&transaction(TransactionEffect::Commit), true);
    parameter.ready(Status::Idle);
    assert_eq!(parameter.current(), &token(1));
}

#[test]
fn an_untracked_change_makes_the_value_unknown_until_learned() {
    let mut parameter = Parameter::new(token(1));
    let unknown = Statement { parameter: ParameterEffect::Unknown, ..Statement::default() };
    run(&mut parameter, &[unknown], Status::Idle);
    assert_eq!(parameter.current(), &ParameterValue::Unknown);
    parameter.learn(token(9));
    assert!(parameter.is_settled());
    run(&mut parameter, &[transaction(TransactionEffect::RollbackTo("never seen".into()))], Status::Transaction);
    assert_eq!(parameter.current(), &ParameterValue::Unknown);
}

#[test]
fn an_untracked_change_makes_the_value_unknown_again_at_commit() {
    let mut parameter = Parameter::new(token(1));
    let begin = transaction(TransactionEffect::Begin);
    let unknown = Statement { parameter: ParameterEffect::Unknown, ..Statement::default() };
    run(&mut parameter, &[begin.clone(), unknown.clone(), set("1", false)], Status::Transaction);
    assert_eq!((parameter.current(), parameter.is_settled()), (&token(1), false));
    run(&mut parameter, &[transaction(TransactionEffect::Commit)], Status::Idle);
    assert_eq!(parameter.current(), &ParameterValue::Unknown);
    parameter.learn(token(1));
    run(&mut parameter, &[begin, unknown, transaction(TransactionEffect::Rollback)], Status::Idle);
    assert_eq!(parameter.current(), &token(1));
}

#[test]
fn a_learned_value_is_kept_only_if_the_transaction_has_not_changed_it() {
    let mut parameter = Parameter::new(ParameterValue::Unknown);
    let begin = [transaction(TransactionEffect::Begin), transaction(TransactionEffect::Savepoint("s".into()))];
    run(&mut parameter, &begin, Status::Transaction);
    parameter.learn(token(1));
    run(&mut parameter, &[transaction(TransactionEffect::RollbackTo("s".into()))], Status::Transaction);
    assert_eq!(parameter.current(), &token(1));
    parameter.forget();
    parameter.learn(token(2));
    run(&mut parameter, &[transaction(TransactionEffect::Commit)], Status::Idle);
    assert_eq!(parameter.current(), &ParameterValue::Unknown);
}

#[test]
fn old_savepoints_are_forgotten_at_the_memory_limit() {
    let list: Vec<_> = (0..8_000).map(|number| format!("s{number}=1")).collect();
    let mut parameter = Parameter::new(token(1));
    for number in 0..100 {
        parameter.completed(&set(&format!("{}, last={}", list.join(","), number + 1), true), false);
        parameter.completed(&transaction(TransactionEffect::Savepoint(format!("s{number}"))), false);
    }
    assert!(parameter.weight() < 2 * MAX_WEIGHT, "{}", parameter.weight());
    parameter.completed(&transaction(TransactionEffect::RollbackTo("s99".into())), false);
    assert_ne!(parameter.current(), &ParameterValue::Unknown);
    parameter.completed(&transaction(TransactionEffect::RollbackTo("s0".into())), false);
    assert_eq!(parameter.current(), &ParameterValue::Unknown);
}

#[test]
fn releasing_a_forgotten_savepoint_discards_newer_ones() {
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
    assert_eq!(parameter.current(), &ParameterValue::Unknown);
}

#[test]
fn a_failed_transaction_accepts_only_its_end() {
    let mut parameter = Parameter::new(token(1));
    run(&mut parameter, &[transaction(TransactionEffect::Begin)], Status::Transaction);
    assert!(!parameter.failed() && !parameter.refuses(&set("2", false)));
    parameter.ready(Status::Failed);
    assert!(parameter.failed() && parameter.refuses(&set("2", false)));
    assert!(!parameter.refuses(&transaction(TransactionEffect::Rollback)));
    run(&mut parameter, &[transaction(TransactionEffect::Rollback)], Status::Idle);
    assert!(!parameter.failed() && !parameter.refuses(&set("2", false)));
}

#[test]
fn an_error_after_discard_all_makes_the_value_unknown() {
    let reset = |kind| Statement { kind, parameter: ParameterEffect::ResetAll, ..Statement::default() };
    for (kind, after) in [(StatementKind::Reset, token(2)), (StatementKind::DiscardAll, ParameterValue::Unknown)] {
        let mut parameter = Parameter::new(token(1));
        run(&mut parameter, &[set("2", false)], Status::Idle);
        parameter.completed(&reset(kind), false);
        assert_eq!(parameter.current(), &token(1), "{kind}");
        parameter.error();
        parameter.ready(Status::Idle);
        assert_eq!(parameter.current(), &after, "{kind}");
    }
}

/// RESET ALL skips a parameter that SET LOCAL has set to its default. The commit then restores an earlier value.
#[test]
fn reset_all_after_set_local_makes_the_value_unknown_at_commit() {
    let reset =
        || Statement { kind: StatementKind::Reset, parameter: ParameterEffect::ResetAll, ..Statement::default() };
    let set_again = || set("3", true);
    for (before, after) in [
        (vec![], token(1)),
        (vec![set("2", true)], ParameterValue::Unknown),
        (vec![set("2", true), set_again()], ParameterValue::Unknown),
        (vec![set("2", true), set_again(), set_again()], ParameterValue::Unknown),
    ] {
        let mut parameter = Parameter::new(token(1));
        run(&mut parameter, &[transaction(TransactionEffect::Begin)], Status::Transaction);
        run(&mut parameter, &[&before[..], &[reset()]].concat(), Status::Transaction);
        assert_eq!(parameter.current(), &token(1), "{} before", before.len());
        run(&mut parameter, &[transaction(TransactionEffect::Commit)], Status::Idle);
        assert_eq!(parameter.current(), &after, "{} before", before.len());
    }
}

#[test]
fn a_value_that_a_rollback_would_change_is_not_settled() {
    let mut parameter = Parameter::new(token(1));
    run(&mut parameter, &[transaction(TransactionEffect::Begin)], Status::Transaction);
    assert!(parameter.is_settled());
    run(&mut parameter, &[set("2", false)], Status::Transaction);
    assert!(!parameter.is_settled());
    run(&mut parameter, &[transaction(TransactionEffect::Commit)], Status::Idle);
    assert!(parameter.is_settled());
}

#[test]
fn rollback_makes_the_value_unknown_if_code_may_have_committed() {
    let unknown = |opaque| Statement { parameter: ParameterEffect::Unknown, opaque, ..Statement::default() };
    for (opaque, after) in [(None, token(1)), (Some(OpaqueReason::Do), ParameterValue::Unknown)] {
        let mut parameter = Parameter::new(token(1));
        run(&mut parameter, &[transaction(TransactionEffect::Begin), unknown(opaque)], Status::Transaction);
        assert_eq!(parameter.current(), &ParameterValue::Unknown);
        run(&mut parameter, &[transaction(TransactionEffect::Rollback)], Status::Idle);
        assert_eq!(parameter.current(), &after, "{opaque:?}");
    }
    let mut parameter = Parameter::new(token(1));
    run(&mut parameter, &[transaction(TransactionEffect::Begin)], Status::Transaction);
    parameter.forget_all();
    assert_eq!(parameter.current(), &ParameterValue::Unknown);
    run(&mut parameter, &[transaction(TransactionEffect::Rollback)], Status::Idle);
    assert_eq!(parameter.current(), &ParameterValue::Unknown);
}

#[test]
fn prepare_transaction_keeps_the_value_unless_rolled_back() {
    for (rolled_back, after) in [(false, token(2)), (true, token(1))] {
        let mut parameter = Parameter::new(token(1));
        run(&mut parameter, &[transaction(TransactionEffect::Begin), set("2", false)], Status::Transaction);
        if rolled_back {
            parameter.error();
            parameter.ready(Status::Failed);
        }
        parameter.completed(&transaction(TransactionEffect::PrepareTransaction), rolled_back);
        parameter.ready(Status::Idle);
        assert_eq!(parameter.current(), &after, "{rolled_back}");
    }
}

/// The server warns, answers with ROLLBACK, and commits the implicit transaction of the pipeline.
#[test]
fn prepare_transaction_outside_a_transaction_makes_the_value_unknown() {
    let mut parameter = Parameter::new(token(1));
    parameter.completed(&set("2", false), false);
    parameter.completed(&transaction(TransactionEffect::PrepareTransaction), true);
    parameter.ready(Status::Idle);
    assert_eq!(parameter.current(), &ParameterValue::Unknown);
}

/// In a failed transaction, only its end succeeds: a text that was not read, or not judged, contained it.
#[test]
fn a_statement_that_succeeds_in_a_failed_transaction_has_ended_it() {
    let mut parameter = Parameter::new(token(1));
    parameter.ready(Status::Failed);
    assert!(parameter.refuses(&set("2", false)));
    parameter.completed(&Statement::default(), false);
    assert!(!parameter.refuses(&set("2", false)));
    assert_eq!(parameter.current(), &ParameterValue::Unknown);
}

/// Planning evaluates immutable functions.
#[test]
fn planning_makes_the_value_unknown() {
    let mut parameter = Parameter::new(token(1));
    parameter.planned();
    assert_eq!(parameter.current(), &ParameterValue::Unknown);
}

/// The value that the oldest savepoint restores, in a transaction with this many savepoints, each with its own value.
fn oldest_of(savepoints: usize, value: impl Fn(usize) -> Statement) -> ParameterValue {
    let mut parameter = Parameter::new(token(1));
    for number in 0..savepoints {
        parameter.completed(&value(number), false);
        parameter.completed(&transaction(TransactionEffect::Savepoint(format!("s{number}"))), false);
    }
    parameter.completed(&transaction(TransactionEffect::RollbackTo("s0".into())), false);
    parameter.current().clone()
}

#[test]
fn the_number_of_remembered_savepoints_is_limited() {
    let value = |number: usize| set(&format!("{}", number + 1), false);
    for (savepoints, after) in
        [(2, token(1)), (MAX_SAVEPOINTS, token(1)), (MAX_SAVEPOINTS + 1, ParameterValue::Unknown)]
    {
        assert_eq!(oldest_of(savepoints, value), after, "{savepoints}");
    }
}

/// SET is remembered twice, because SET LOCAL may hide it.
#[test]
fn savepoints_are_remembered_up_to_the_memory_limit() {
    // 128 bytes for each resource: its name and the bookkeeping.
    let list: Vec<String> = (0..512).map(|number| format!("{number:064}=1")).collect();
    let (text, weight) = (list.join(","), 512 * 128);
    for (local, fit) in [(true, MAX_WEIGHT / weight), (false, MAX_WEIGHT / weight / 2)] {
        let value = |_| set(&text, local);
        assert_ne!(oldest_of(fit + 1, value), ParameterValue::Unknown, "{local}");
        assert_eq!(oldest_of(fit + 2, value), ParameterValue::Unknown, "{local}");
    }
}
