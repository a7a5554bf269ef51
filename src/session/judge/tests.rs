//! The judge as a table: a text, the token of the session and what is known, and what is decided.

mod facts;
mod strings;

use super::*;
use crate::catalogue::Catalogue;
use crate::fence::Cause;
use crate::policy::{QualifiedName, join};
use crate::session::parameter::ParameterValue;
use crate::statement::{Lexing, analyse, analyse_rows};
use crate::wire::client_error::ClientError;

const POLICIES: &str = "version: 1
resources:
  - {name: scheduler, tables: [public.jobs]}
  - {name: billing, tables: [public.bills], on_missing: allow}
  - {name: trial, tables: [public.trials], mode: observe}
";

fn policies() -> PolicySet {
    join([("a.yaml".into(), Ok(POLICIES.into()))]).unwrap()
}

/// Policies for the table `shards` by its key `k`, and that table.
fn keyed() -> (PolicySet, QualifiedName) {
    let policies = "version: 1\nresources:\n  - {name: 'shard/{k}', tables: [{name: public.shards, key: k}]}\n";
    let policies = join([("a.yaml".into(), Ok(policies.into()))]).unwrap();
    let table = policies.resources[0].tables[0].name.clone();
    (policies, table)
}

/// What is known beside the text and the token, in words: see [`World::new`].
#[derive(Default)]
struct World {
    admitted: HashMap<String, Token>,
    known: HashMap<String, Token>,
    written: HashMap<String, Token>,
    observed: ObservedWrites,
    refused: Option<Refusal>,
    suspects: Suspects,
    of_others: Vec<Arc<Suspects>>,
    seen: Seen,
    words: Vec<String>,
}

impl World {
    /// `admitted=47 known=100 written=46` of the scheduler; `refused`: an Admit failed; `owed`: the server owes replies;
    /// `past=47`: it has written under that token past the trial; `only=1`: of the tables only that of the trial exists;
    /// `changed`: this transaction has changed what concerns fenced tables; `shadows`: it may have made operators that tell keys; `sees`:
    /// the search path is known; `rows`: those are read; `doubt`: some of them may change the parameter; `unread`: the catalogue; `unheard`: nobody listens; `empty`: no fenced
    /// table exists; `defines` and `others`: what may lead to every table; `exempt`.
    fn new(words: &str) -> Self {
        let mut world = World { words: words.split_whitespace().map(str::to_owned).collect(), ..World::default() };
        let tables = policies().resources.iter().map(|it| it.tables[0].name.clone()).collect();
        let tables: Vec<_> = if world.says("empty") { Vec::new() } else { tables };
        let is_current = !world.says("unread") && !world.says("unheard");
        let is_unheard = world.says("unheard");
        world.seen =
            Seen { catalogue: Arc::new(Catalogue::of_tables(tables)), is_current, is_unheard, ..Seen::default() };
        for word in world.words.clone() {
            let Some((name, token)) = word.split_once('=') else { continue };
            let tokens = match name {
                "admitted" => &mut world.admitted,
                "known" => &mut world.known,
                "written" => &mut world.written,
                "past" => {
                    let trial = policies().resource_called("trial").cloned();
                    world.observed = ObservedWrites {
                        written: HashMap::from([("trial".to_owned(), token.parse().unwrap())]),
                        admitted: trial,
                    };
                    continue;
                }
                "only" => {
                    let trial = policies().resources[2].tables[0].name.clone();
                    world.seen.catalogue = Arc::new(Catalogue::of_tables([trial]));
                    continue;
                }
                _ => panic!("{word} is no fact"),
            };
            tokens.insert("scheduler".to_owned(), token.parse().unwrap());
        }
        if world.says("refused") {
            world.refused = Some(Refusal::unavailable("scheduler", Cause::from("no connection")));
        }
        if world.says("defines") {
            world.suspects = Suspects::everything();
        }
        if world.says("others") {
            world.of_others.push(Arc::new(Suspects::everything()));
        }
        world
    }

    fn says(&self, word: &str) -> bool {
        self.words.iter().any(|it| it == word)
    }

    fn judge(&self, text: &str, token: &str) -> String {
        self.judge_under(&policies(), text, token)
    }

    fn judge_under(&self, policies: &PolicySet, text: &str, token: &str) -> String {
        show(self.decide(policies, text, token))
    }

    fn decide(&self, policies: &PolicySet, text: &str, token: &str) -> Decision {
        let read = if self.says("rows") { analyse_rows } else { analyse };
        let statements = read(text.as_bytes(), Lexing::USUAL).unwrap().statements;
        let parameter =
            Parameter::new(if token == "?" { ParameterValue::Unknown } else { ParameterValue::read(Some(token)) });
        let judge = Judge {
            policies,
            standing: self,
            seen: &self.seen,
            changes_catalogue: self.says("changed"),
            shadows_keys: self.says("shadows"),
            path: self.says("sees").then_some("{pg_catalog,public}"),
            suspects: &self.suspects,
            suspects_of_others: &self.of_others,
            exempt: self.says("exempt"),
            opaque: policies.opaque_of("postgres"),
            parameter: &parameter,
            owed: self.says("owed"),
            parameter_in_doubt: self.says("doubt"),
            written: &self.written,
            observed: &self.observed,
            refused: self.refused.as_ref(),
        };
        judge.statements(&statements)
    }
}

impl Standing for World {
    fn admitted(&self, resource: &str) -> Option<Token> {
        self.admitted.get(resource).copied()
    }

    fn holds_admissions(&self) -> bool {
        !self.admitted.is_empty()
    }

    fn known_stale(&self, resource: &str, token: Token) -> Option<Epoch> {
        let highest = self.known.get(resource).copied().filter(|highest| *highest > token)?;
        Some(Epoch { generation: 1, token: highest })
    }
}

fn show(decision: Decision) -> String {
    let needs = |needs: Vec<Need>| needs.iter().map(|need| format!(" {}={}", need.resource.name, need.token)).collect();
    match decision {
        Decision::Forward(list, passed) => {
            let list: String = needs(list);
            let passed: String = passed
                .iter()
                .map(|it| {
                    format!(" past {}", it.observed.as_ref().map_or("exempt", |rejection| rejection.kind().label()))
                })
                .collect();
            format!("forward{list}{passed}")
        }
        Decision::Reject(index, rejection, list) => {
            let list: String = needs(list);
            format!("reject {index} {}{list}", rejection.text().code)
        }
        Decision::Settle => "settle".to_owned(),
        Decision::ReadValue => "ask".to_owned(),
        Decision::ReadRows => "read rows".to_owned(),
    }
}

#[track_caller]
fn check(cases: &[(&str, &str, &str, &str)]) {
    let found = |(text, token, words, expected): &(&str, &str, &str, &str)| {
        let found = World::new(words).judge(text, token);
        (found != *expected).then(|| format!("{text} | {token} | {words}\n  expected: {expected}\n  found:    {found}"))
    };
    let wrong: Vec<_> = cases.iter().filter_map(found).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

const WRITE: &str = "INSERT INTO jobs VALUES (1)";

#[test]
fn tokens_and_admissions() {
    check(&[
        // A write needs the session's token; whether it is admitted already is for the fence.
        (WRITE, "47", "", "forward scheduler=47"),
        (WRITE, "47", "admitted=47", "forward scheduler=47"),
        (WRITE, "47", "admitted=47 known=100", "forward scheduler=47"),
        (WRITE, "47", "known=47", "forward scheduler=47"),
        (WRITE, "47", "known=100", "reject 0 LF001"),
        (WRITE, "47", "admitted=46 known=100", "reject 0 LF001"),
        (WRITE, "", "", "reject 0 LF002"),
        (WRITE, "other=5", "", "reject 0 LF002"),
        (WRITE, "none of it", "", "reject 0 LF003"),
        (WRITE, "47", "written=46", "reject 0 LF003"),
        (WRITE, "47", "written=47", "forward scheduler=47"),
        (WRITE, "47", "refused", "reject 0 LF006"),
        (WRITE, "", "exempt", "forward past exempt"),
        ("SELECT * FROM jobs", "", "", "forward"),
        // Locking is for holders of a token only.
        ("SELECT * FROM jobs FOR UPDATE", "", "", "forward"),
        ("SELECT * FROM jobs FOR UPDATE", "47", "", "forward scheduler=47"),
        ("INSERT INTO bills VALUES (1)", "", "", "forward"),
        ("INSERT INTO bills VALUES (1)", "billing=3", "", "forward billing=3"),
        ("INSERT INTO trials VALUES (1)", "", "", "forward past missing"),
        ("INSERT INTO trials VALUES (1)", "47", "", "forward trial=47"),
        ("INSERT INTO free VALUES (1)", "", "", "forward"),
    ]);
}

#[test]
fn what_is_owed_and_what_is_not_known_of_the_token() {
    check(&[
        (WRITE, "47", "owed", "forward scheduler=47"),
        (WRITE, "47", "owed doubt", "settle"),
        (WRITE, "47", "owed admitted=46", "settle"),
        (WRITE, "47", "admitted=46", "forward scheduler=47"),
        (WRITE, "?", "", "ask"),
        (WRITE, "?", "owed doubt", "settle"),
        ("SELECT 1", "?", "owed doubt", "forward"),
        ("SET lease.fence = 'x'", "", "", "reject 0 LF003"),
        ("SET lease.fence = 48", "47", "admitted=47", "forward"),
    ]);
}

#[test]
fn several_statements() {
    check(&[
        ("SET lease.fence = 48; INSERT INTO jobs VALUES (1)", "", "", "forward scheduler=48"),
        ("RESET lease.fence; INSERT INTO jobs VALUES (1)", "47", "", "forward scheduler=47"),
        ("SELECT 1; INSERT INTO jobs VALUES (1)", "", "", "reject 1 LF002"),
        ("INSERT INTO jobs VALUES (1); DO 'BEGIN END'", "47", "", "reject 1 LF004 scheduler=47"),
        (
            "INSERT INTO jobs VALUES (1); SET lease.fence = 48; DELETE FROM jobs",
            "47",
            "",
            "reject 2 LF003 scheduler=47",
        ),
        ("SELECT set_config(n, '1', false) FROM t; INSERT INTO jobs VALUES (1)", "47", "", "reject 1 LF004"),
        ("PREPARE TRANSACTION 'a'", "47", "", "forward"),
        ("PREPARE TRANSACTION 'a'", "47", "admitted=47", "reject 0 LF004"),
        ("INSERT INTO jobs VALUES (1); PREPARE TRANSACTION 'a'", "47", "", "reject 1 LF004 scheduler=47"),
    ]);
}

#[test]
fn what_does_not_show_what_it_writes() {
    check(&[
        ("DO 'BEGIN END'", "47", "", "reject 0 LF004"),
        ("DO 'BEGIN END'", "47", "exempt", "forward past exempt"),
        ("DO 'BEGIN END'", "", "empty", "forward"),
        ("CALL p()", "", "", "reject 0 LF004"),
        ("INSERT INTO free VALUES (1)", "47", "defines", "reject 0 LF004"),
        ("INSERT INTO free VALUES (1)", "47", "others", "reject 0 LF004"),
        ("SELECT 1", "47", "defines others", "forward"),
        // Until the catalogue is read, any relation may be a way to a fenced table.
        ("INSERT INTO free VALUES (1)", "", "unread", "reject 0 LF006"),
        ("INSERT INTO free VALUES (1)", "", "unheard", "reject 0 LF006"),
        (WRITE, "47", "unread", "reject 0 LF006"),
        (WRITE, "47", "unheard", "forward scheduler=47"),
        (WRITE, "47", "others unread", "reject 0 LF006"),
        ("SELECT 1", "", "unread", "forward"),
    ]);
}

/// So it need not be judged at all.
#[test]
fn no_fact_matters_to_what_only_reads() {
    let all = "admitted=46 known=100 written=46 past=46 refused doubt defines others unread exempt";
    let words = all.split(' ').chain(["unheard", "empty", "only=1", ""]);
    for text in ["SELECT 1", "SELECT count(*), lower(x) FROM jobs", "SELECT * FROM free, trials WHERE x = 'y'"] {
        assert!(analyse(text.as_bytes(), Lexing::USUAL).unwrap().statements[0].only_reads(), "{text}");
        for (words, token) in words.clone().chain([all]).flat_map(|words| ["", "47", "?"].map(|token| (words, token))) {
            assert_eq!(World::new(words).judge(text, token), "forward", "{text} | {token} | {words}");
        }
    }
    for text in [
        "SELECT 1 FROM jobs FOR UPDATE",
        "SELECT f()",
        "SELECT set_config('lease.fence', '1', false)",
        "SELECT 1 INTO t",
        "WITH w AS (DELETE FROM jobs RETURNING 1) SELECT * FROM w",
        "INSERT INTO jobs VALUES (1)",
        "EXPLAIN ANALYZE DELETE FROM jobs",
        "FETCH 1 FROM c",
        "EXECUTE p",
        "SHOW lease.fence",
        "DO 'BEGIN END'",
    ] {
        assert!(!analyse(text.as_bytes(), Lexing::USUAL).unwrap().statements[0].only_reads(), "{text}");
    }
}

/// The catalogue says which column tells the keys: without it nothing is known of them, and that passes.
#[test]
fn a_key_whose_column_is_not_read_is_no_mistake_of_the_statement() {
    let (policies, _) = keyed();
    for text in ["UPDATE shards SET v = 2", "INSERT INTO shards VALUES (1) ON CONFLICT (v) DO UPDATE SET v = 2"] {
        // What was read says that no key shows: that nobody listens since is no reason to say anything else.
        assert!(World::new("rows empty unheard").judge_under(&policies, text, "47").contains("LF004"), "{text}");
    }
    for text in ["SELECT * FROM shards WHERE k = 1 FOR UPDATE", "UPDATE shards SET v = 2 WHERE k = 1"] {
        assert!(World::new("rows empty unread").judge_under(&policies, text, "47").contains("LF006"), "{text}");
        assert!(World::new("rows empty").judge_under(&policies, text, "47").contains("LF004"), "{text}");
    }
}

#[test]
fn the_rows_are_read_where_keys_stand_in_them_and_nowhere_else() {
    let policies = "version: 1\nresources:\n  - {name: 'shard/{k}', tables: [{name: public.shards, key: k}]}\n  - {name: other, tables: [public.other]}\n";
    let policies = join([("a.yaml".into(), Ok(policies.into()))]).unwrap();
    for (text, expected) in [
        ("UPDATE shards SET v = 2 WHERE k = 1", "read rows"),
        ("UPDATE other SET v = 2 WHERE k = 1", "forward other=47"),
        ("UPDATE free SET v = 2 WHERE k = 1", "forward"),
    ] {
        assert_eq!(World::new("").judge_under(&policies, text, "47"), expected, "{text}");
    }
}

/// One fence acts and one observes, in the words of [`check`]; then both act.
#[test]
fn what_passes_a_fence_that_observes_is_what_it_would_reject() {
    const MIXED: &str = "version: 1
resources:
  - {name: scheduler, tables: [public.jobs]}
  - {name: trial, tables: [public.trials], mode: observe}
";
    const OBSERVED: &str = "version: 1
resources:
  - {name: trial, tables: [public.trials], mode: observe}
";
    let judge = |policies: &str, text: &str, token: &str, words: &str| {
        let policies = join([("a.yaml".into(), Ok(policies.to_owned().into()))]).unwrap();
        World::new(words).judge_under(&policies, text, token)
    };
    let is_past = |decision: &str| decision.contains(" past ");
    for (text, token, words) in [
        ("INSERT INTO trials VALUES (1)", "", ""),
        ("INSERT INTO trials VALUES (1)", "none of it", ""),
        ("DO 'BEGIN END'", "47", ""),
        ("CALL p()", "47", ""),
        ("DROP SCHEMA s CASCADE", "47", ""),
        ("INSERT INTO free VALUES (1)", "47", "defines"),
        ("INSERT INTO free VALUES (1)", "47", "others"),
        ("INSERT INTO free VALUES (1)", "47", "unread"),
        ("INSERT INTO free VALUES (1)", "47", "unheard"),
        ("INSERT INTO trials VALUES (1); PREPARE TRANSACTION 'a'", "47", ""),
        ("INSERT INTO trials VALUES (1); SET lease.fence = 48; DELETE FROM trials", "47", ""),
        ("SELECT set_config(n, '1', false) FROM t; INSERT INTO trials VALUES (1)", "47", ""),
        ("PREPARE TRANSACTION 'a'", "47", "defines"),
        ("PREPARE TRANSACTION 'a'", "47", "past=47"),
        ("INSERT INTO trials VALUES (1)", "48", "past=47"),
    ] {
        let enforced = judge(&OBSERVED.replace("mode: observe", "mode: enforce"), text, token, words);
        // What a session has done past a fence that observes is nothing to one that acts.
        assert!(enforced.starts_with("reject") || words.contains("past"), "{text}: {enforced}");
        let observed = judge(OBSERVED, text, token, words);
        assert!(observed.starts_with("forward") && is_past(&observed), "{text}: {observed}");
    }
    // Where it is not known which is meant, the fence that acts rejects.
    assert_eq!(judge(MIXED, "DO 'BEGIN END'", "47", ""), "reject 0 LF004");
    assert_eq!(judge(MIXED, "INSERT INTO trials VALUES (1)", "", ""), "forward past missing");
    assert_eq!(judge(MIXED, WRITE, "47", "unread"), "forward scheduler=47 past unavailable");
    assert_eq!(judge(MIXED, "INSERT INTO trials VALUES (1)", "47", "unread"), "reject 0 LF006");
    // Where there is nothing of it, a fence that acts elsewhere rejects nothing.
    assert_eq!(judge(MIXED, "DO 'BEGIN END'", "47", "only=1"), "forward past unverifiable");
    let both = format!("{MIXED}opaque: require_token\n");
    assert_eq!(judge(&both, "DO 'BEGIN END'", "scheduler=47", ""), "forward scheduler=47 past missing");
    assert_eq!(judge(&both, "DO 'BEGIN END'", "47", ""), "forward scheduler=47 trial=47");
    for (role, decision) in [("postgres", "forward"), ("app", "reject 0 LF004")] {
        let policies = MIXED.to_owned() + &format!("opaque_roles: {{{role}: allow}}\n");
        assert_eq!(judge(&policies, "DO 'BEGIN END'", "", ""), decision, "{role}");
    }
}
