//! What a decision says beside yes and no: of each need how its token may be raised, and of each rejection why.

use super::*;
use crate::wire::client_error::ClientError;

/// Of each need its token, and what is said of it.
pub(super) fn needs(policies: &PolicySet, words: &str, text: &str) -> String {
    let (Decision::Forward(needs, _) | Decision::Reject(_, _, needs)) = World::new(words).decide(policies, text, "47")
    else {
        return "later".to_owned();
    };
    let of_need = |need: &Need| {
        let said = [("raises", need.may_raise), ("role", need.role_changes), ("presumed", need.presumed)];
        let said = said.iter().filter(|(_, is_said)| *is_said).map(|(word, _)| format!(" {word}"));
        format!("{}={}{} by {}", need.resource.name, need.token, said.collect::<String>(), need.statement.kind)
    };
    needs.iter().map(of_need).collect::<Vec<_>>().join(", ")
}

/// The whole text of the rejection.
pub(super) fn why(policies: &PolicySet, words: &str, text: &str, token: &str) -> String {
    match World::new(words).decide(policies, text, token) {
        Decision::Reject(_, rejection, _) => {
            let text = rejection.text();
            format!("{} {} | {} | {}", text.code, text.message, text.detail, text.hint)
        }
        other => format!("not rejected: {}", show(other)),
    }
}

pub(super) fn with(more: &str) -> PolicySet {
    join([("a.yaml".into(), Ok((POLICIES.to_owned() + more).into()))]).unwrap()
}

#[test]
fn what_is_said_of_a_need() {
    let all = "scheduler=47 by DO, billing=47 by DO, trial=47 by DO";
    let both = "scheduler=47 raises by INSERT, scheduler=47 raises by DELETE";
    let presumes = "SELECT set_config(n, '1', false) FROM t; INSERT INTO jobs VALUES (1); DELETE FROM jobs";
    for (more, words, text, expected) in [
        ("", "", WRITE, "scheduler=47 raises by INSERT"),
        // What the server runs under another role is asked for any role that the session may take.
        ("", "", "SET ROLE app; INSERT INTO jobs VALUES (1)", "scheduler=47 raises role by INSERT"),
        ("", "", "INSERT INTO jobs VALUES (1); SET ROLE app", "scheduler=47 raises by INSERT"),
        ("", "", "INSERT INTO jobs VALUES (1); DELETE FROM jobs", both),
        // What is opaque may write nothing of it at all: it raises nothing.
        ("opaque: require_token\n", "only=1", "DO 'BEGIN END'", "trial=47 by DO"),
        ("opaque: require_token\n", "only=1 changed", "DO 'BEGIN END'", all),
        ("opaque: require_token\n", "empty", "DO 'BEGIN END'", ""),
        // The server checks the token in between, once for each fence.
        (
            "opaque: allow\n",
            "",
            presumes,
            "scheduler=47 raises role presumed by INSERT, scheduler=47 raises role by DELETE",
        ),
        ("opaque: allow\n", "", "DELETE FROM jobs; DO 'BEGIN END'", "scheduler=47 raises by DELETE"),
    ] {
        assert_eq!(needs(&with(more), words, text), expected, "{text} | {words} | {more}");
    }
}

#[test]
fn what_a_rejection_says() {
    let free = "INSERT INTO free VALUES (1)";
    let after_commit = "BEGIN; DELETE FROM jobs; COMMIT; SET lease.fence = 48; DELETE FROM jobs";
    let within = "BEGIN; DELETE FROM jobs; SET lease.fence = 48; DELETE FROM jobs; COMMIT";
    for (words, token, text, parts) in [
        ("", "47", "DO 'BEGIN END'", ["LF004", "DO: ", "guard install"]),
        ("defines", "47", free, ["INSERT: \"free\"", "the same transaction", "Commit the definitions"]),
        ("others", "47", free, ["INSERT: \"free\"", "another session is", "Try again when"]),
        ("", "", WRITE, ["LF002", "may mean public.jobs: name the schema", "SET lease.fence"]),
        ("", "billing=3", WRITE, ["LF002", "names only billing.", "may mean public.jobs"]),
        ("", "none of it", WRITE, ["LF003", "is not a fencing token", "resource=scheduler"]),
        ("", "", "SET lease.fence = 'x'", ["LF003", "a token is an integer", "value=\"x\""]),
        ("known=100", "47", WRITE, ["LF001", "presented=47 highest=100", "A newer leader"]),
        ("written=46", "47", WRITE, ["LF003", "presented=47 highest=46", "between transactions"]),
        ("written=47", "47", "PREPARE TRANSACTION 'a'", ["LF004", "carry writes to a fenced table", "two-phase"]),
        ("defines", "47", "PREPARE TRANSACTION 'a'", ["LF004", "carry ways to a fenced table", "that defines them"]),
        ("", "47", after_commit, ["LF003", "under token 47 and then 48", "in a string of its own"]),
        ("", "47", within, ["LF003", "under token 47 | resource=scheduler presented=48", "not within one"]),
    ] {
        let why = why(&policies(), words, text, token);
        assert!(parts.iter().all(|part| why.contains(part)), "{text} | {token} | {words}: {why}");
    }
    let named = why(&policies(), "", "INSERT INTO public.jobs VALUES (1)", "");
    assert!(named.starts_with("LF002") && !named.contains("may mean"), "{named}");
    // Definitions alone are nothing to a policy that lets pass what is opaque.
    assert!(why(&with("opaque: allow\n"), "defines", "PREPARE TRANSACTION 'a'", "47").starts_with("not rejected"));
}

#[test]
fn a_refusal_is_about_its_own_fence() {
    check(&[
        ("INSERT INTO bills VALUES (1)", "47", "refused", "forward billing=47"),
        ("INSERT INTO bills VALUES (1); DELETE FROM jobs", "47", "refused", "reject 1 LF006 billing=47"),
        ("INSERT INTO bills VALUES (1)", "47", "written=46 known=100", "forward billing=47"),
        (WRITE, "48", "admitted=47", "forward scheduler=48"),
        (WRITE, "48", "admitted=47 owed", "settle"),
        ("SELECT * FROM jobs FOR UPDATE", "", "exempt", "forward"),
        ("LOCK TABLE jobs", "47", "", "forward scheduler=47"),
        ("PREPARE TRANSACTION 'a'", "47", "written=47", "reject 0 LF004"),
        ("DO 'BEGIN END'", "47", "changed empty", "reject 0 LF004"),
    ]);
}

/// Where an operator may not be the catalogue's own, what compares a key by it says nothing of it.
#[test]
fn keys_of_a_table() {
    let (policies, table) = keyed();
    let (insert, update) = ("INSERT INTO shards VALUES (3, 1)", "UPDATE shards SET v = 1 WHERE k = 3");
    for (words, text, token, expected) in [
        ("", insert, "47", "forward shard/3=47"),
        ("", insert, "shard/3=7, shard/4=8", "forward shard/3=7"),
        ("", insert, "shard/4=8", "reject 0 LF002"),
        ("", insert, "", "reject 0 LF002"),
        ("", update, "47", "forward shard/3=47"),
        ("", "UPDATE shards SET v = 1", "47", "reject 0 LF004"),
        ("", "UPDATE shards SET v = 1", "", "reject 0 LF002"),
        ("shadows", insert, "47", "forward shard/3=47"),
        ("shadows", update, "47", "reject 0 LF004"),
        ("shadows sees", update, "47", "reject 0 LF004"),
        ("shadows", update, "", "reject 0 LF002"),
        ("", "DO 'BEGIN END'", "47", "reject 0 LF004"),
    ] {
        let mut world = World::new(&format!("rows {words}"));
        world.seen.catalogue = Arc::new(Catalogue::with_views([(table.clone(), true)], []));
        assert_eq!(world.judge_under(&policies, text, token), expected, "{text} | {token} | {words}");
    }
}

/// What is read may be a view that calls a function, unless the policies name it or Postgres does.
#[test]
fn what_the_policies_name_all_of() {
    let with_functions =
        "version: 1\nresources:\n  - {name: scheduler, tables: [public.jobs], functions: [public.f]}\n";
    let with_functions = join([("a.yaml".into(), Ok(with_functions.into()))]).unwrap();
    for (text, without, with) in [
        ("INSERT INTO jobs VALUES (1)", true, true),
        ("INSERT INTO jobs SELECT 1 FROM jobs", true, true),
        ("INSERT INTO jobs SELECT 1 FROM pg_catalog.pg_class", true, true),
        ("INSERT INTO jobs SELECT 1 FROM other", true, false),
        ("INSERT INTO jobs SELECT 1 FROM s.pg_class", true, false),
        ("INSERT INTO other VALUES (1)", false, false),
    ] {
        let statement = analyse(text.as_bytes(), Lexing::USUAL).unwrap().statements[0].clone();
        let plainly = |policies: &PolicySet| is_named_plainly(&statement, policies);
        assert_eq!((plainly(&policies()), plainly(&with_functions)), (without, with), "{text}");
    }
}
