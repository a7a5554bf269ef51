//! Contents of a decision: how the token of each need may be raised, and the text of a rejection.

use super::*;
use fencegate_catalog::Catalog;
use fencegate_wire::client_error::ClientError;

/// The tested parts of a need.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Needed {
    resource: String,
    kind: String,
    may_raise: bool,
    role_changes: bool,
    presumed: bool,
}

/// A statement of this kind needs the token of the resource, and may raise it.
pub(super) fn needed(resource: &str, kind: &str) -> Needed {
    let (resource, kind) = (resource.to_owned(), kind.to_owned());
    Needed { resource, kind, may_raise: true, role_changes: false, presumed: false }
}

impl Needed {
    /// The statement may not raise the token.
    fn in_force(mut self) -> Self {
        self.may_raise = false;
        self
    }

    /// The session may assume another role before the statement runs.
    pub(super) fn under_any_role(mut self) -> Self {
        self.role_changes = true;
        self
    }

    /// The server has to check the token before the statement runs.
    pub(super) fn checked(mut self) -> Self {
        self.presumed = true;
        self
    }
}

/// The needs of a text under token 47.
pub(super) fn needs(policies: &PolicySet, world: &World, text: &str) -> Vec<Needed> {
    let (Decision::Forward(needs, _) | Decision::Reject(_, _, needs)) = world.decide(policies, text, token(47)) else {
        panic!("{text} is not decided");
    };
    let reduced = |need: Need| {
        assert_eq!(need.token, 47, "{text}");
        Needed {
            resource: need.resource.name.clone(),
            kind: need.statement.kind.to_string(),
            may_raise: need.may_raise,
            role_changes: need.role_changes,
            presumed: need.presumed,
        }
    };
    needs.into_iter().map(reduced).collect()
}

/// The text of a rejection that a client receives, or `None` if the statement is not rejected.
pub(super) fn rejection(policies: &PolicySet, world: &World, text: &str, token: ParameterValue) -> Option<String> {
    match world.decide(policies, text, token) {
        Decision::Reject(_, rejection, _) => {
            let text = rejection.text();
            Some(format!("{} {} | {} | {}", text.code, text.message, text.detail, text.hint))
        }
        _ => None,
    }
}

/// The usual policies and these lines.
pub(super) fn policies_with(more: &str) -> PolicySet {
    read_policies(&(POLICIES.to_owned() + more))
}

#[test]
fn a_need_states_how_its_token_may_be_raised() {
    let set_config = "SELECT set_config(n, '1', false) FROM t; INSERT INTO jobs VALUES (1); DELETE FROM jobs";
    let insert = || needed("scheduler", "INSERT");
    let opaque = |resource| needed(resource, "DO").in_force();
    for (more, world, text, expected) in [
        ("", world(), WRITE, vec![insert()]),
        ("", world(), "SET ROLE app; INSERT INTO jobs VALUES (1)", vec![insert().under_any_role()]),
        ("", world(), "INSERT INTO jobs VALUES (1); SET ROLE app", vec![insert()]),
        ("", world(), "INSERT INTO jobs VALUES (1); DELETE FROM jobs", vec![insert(), needed("scheduler", "DELETE")]),
        // An opaque statement raises no token, because it may write nothing.
        ("opaque: require_token\n", world().with_trial_only(), OPAQUE, vec![opaque("trial")]),
        (
            "opaque: require_token\n",
            world().with_trial_only().changes_catalog(),
            OPAQUE,
            vec![opaque("scheduler"), opaque("billing"), opaque("trial")],
        ),
        ("opaque: require_token\n", world().without_tables(), OPAQUE, vec![]),
        // The server checks the token in between, once for each fence.
        (
            "opaque: allow\n",
            world(),
            set_config,
            vec![insert().under_any_role().checked(), needed("scheduler", "DELETE").under_any_role()],
        ),
        ("opaque: allow\n", world(), "DELETE FROM jobs; DO ''", vec![needed("scheduler", "DELETE")]),
    ] {
        assert_eq!(needs(&policies_with(more), &world, text), expected, "{text} | {more}");
    }
}

#[test]
fn a_rejection_states_the_cause_and_the_remedy() {
    let after_commit = "BEGIN; DELETE FROM jobs; COMMIT; SET lease.fence = 48; DELETE FROM jobs";
    let within = "BEGIN; DELETE FROM jobs; SET lease.fence = 48; DELETE FROM jobs; COMMIT";
    for (world, token, text, parts) in [
        (world(), token(47), OPAQUE, ["LF004", "DO: ", "guard install"]),
        (world().defines(), token(47), FREE, ["INSERT: \"free\"", "the same transaction", "Commit the definitions"]),
        (
            world().others_define(),
            token(47),
            FREE,
            ["INSERT: \"free\"", "another session has not committed", "Retry when"],
        ),
        (world(), no_token(), WRITE, ["LF002", "may mean public.jobs. For another table", "SET lease.fence"]),
        (world(), value("billing=3"), WRITE, ["LF002", "names only billing.", "may mean public.jobs"]),
        (world(), value("none of it"), WRITE, ["LF003", "is not a fencing token", "resource=scheduler"]),
        (world(), no_token(), "SET lease.fence = 'x'", ["LF003", "a token is an integer", "value=\"x\""]),
        (world().knows(100), token(47), WRITE, ["LF001", "presented=47 highest=100", "A newer leader"]),
        (world().has_written(46), token(47), WRITE, ["LF003", "presented=47 highest=46", "between transactions"]),
        (world().has_written(47), token(47), PREPARE, ["LF004", "has written to a fenced table", "two-phase"]),
        (world().defines(), token(47), PREPARE, ["LF004", "may have defined a path to a fenced table", "Use COMMIT"]),
        (world(), token(47), after_commit, ["LF003", "under token 47 and then 48", "as separate queries"]),
        (world(), token(47), within, ["LF003", "under token 47 | resource=scheduler presented=48", "not within one"]),
    ] {
        let found = rejection(&policies(), &world, text, token.clone()).unwrap();
        assert!(parts.iter().all(|part| found.contains(part)), "{text} | {token:?}: {found}");
    }
    let named = rejection(&policies(), &world(), "INSERT INTO public.jobs VALUES (1)", no_token()).unwrap();
    assert!(named.starts_with("LF002") && !named.contains("may mean"), "{named}");
    // If the policies allow opaque statements, definitions alone do not matter.
    assert_eq!(rejection(&policies_with("opaque: allow\n"), &world().defines(), PREPARE, token(47)), None);
}

#[test]
fn a_refusal_affects_only_its_own_fence() {
    let both = "INSERT INTO bills VALUES (1); DELETE FROM jobs";
    check([
        (world().refused(), BILL, token(47), forward().needs("billing", 47)),
        (world().refused(), both, token(47), reject(1, "LF006").needs("billing", 47)),
        (world().has_written(46).knows(100), BILL, token(47), forward().needs("billing", 47)),
        (world().admitted(47), WRITE, token(48), forward().needs("scheduler", 48)),
        (world().admitted(47).owes(), WRITE, token(48), Outcome::Settle),
        (world().exempt(), LOCK, no_token(), forward()),
        (world(), "LOCK TABLE jobs", token(47), forward().needs("scheduler", 47)),
        (world().has_written(47), PREPARE, token(47), reject(0, "LF004")),
        (world().changes_catalog().without_tables(), OPAQUE, token(47), reject(0, "LF004")),
    ]);
}

/// A comparison does not show the key if its operator may not be that of pg_catalog.
#[test]
fn a_write_needs_the_token_of_each_key() {
    let (policies, table) = keyed();
    let (insert, update) = ("INSERT INTO shards VALUES (3, 1)", "UPDATE shards SET v = 1 WHERE k = 3");
    let any_row = "UPDATE shards SET v = 1";
    let third = || forward().needs("shard/3", 47);
    for (world, text, token, expected) in [
        (world(), insert, token(47), third()),
        (world(), insert, value("shard/3=7, shard/4=8"), forward().needs("shard/3", 7)),
        (world(), insert, value("shard/4=8"), reject(0, "LF002")),
        (world(), insert, no_token(), reject(0, "LF002")),
        (world(), update, token(47), third()),
        (world(), any_row, token(47), reject(0, "LF004")),
        (world(), any_row, no_token(), reject(0, "LF002")),
        (world().shadows_keys(), insert, token(47), third()),
        (world().shadows_keys(), update, token(47), reject(0, "LF004")),
        (world().shadows_keys().knows_path(), update, token(47), reject(0, "LF004")),
        (world().shadows_keys(), update, no_token(), reject(0, "LF002")),
        (world(), OPAQUE, token(47), reject(0, "LF004")),
    ] {
        let world = world.reads_rows().with_catalog(Catalog::with_views([(table.clone(), true)], []));
        assert_eq!(world.judge(&policies, text, token.clone()), expected, "{text} | {token:?}");
    }
}

/// A relation that is read may be a view that calls a function, unless the policies or PostgreSQL define the relation.
#[test]
fn a_statement_is_plain_if_policies_name_every_object_it_uses() {
    let with_functions =
        read_policies("version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs], functions: [public.f]}\n");
    for (text, without, with) in [
        ("INSERT INTO jobs VALUES (1)", true, true),
        ("INSERT INTO jobs SELECT 1 FROM jobs", true, true),
        ("INSERT INTO jobs SELECT 1 FROM pg_catalog.pg_class", true, true),
        ("INSERT INTO jobs SELECT 1 FROM other", true, false),
        ("INSERT INTO jobs SELECT 1 FROM s.pg_class", true, false),
        ("INSERT INTO other VALUES (1)", false, false),
    ] {
        let statement = analyze(text.as_bytes(), Lexing::USUAL).unwrap().statements[0].clone();
        let plainly = |policies: &PolicySet| is_named_plainly(&statement, policies);
        assert_eq!((plainly(&policies()), plainly(&with_functions)), (without, with), "{text}");
    }
}
