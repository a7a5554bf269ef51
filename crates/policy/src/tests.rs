//! Rules of policies, and the exact position of every error.

use super::*;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

fn join(files: &[(&str, &str)]) -> Result<PolicySet, Vec<String>> {
    let files = files.iter().map(|(name, text)| (PathBuf::from(name), io::Result::Ok(text.as_bytes().to_vec())));
    load::join(files).map_err(|errors| errors.iter().map(ToString::to_string).collect())
}

fn set(text: &str) -> PolicySet {
    join(&[("a.yaml", text)]).unwrap()
}

/// A file with these resources, starting in line 3.
fn resources(text: &str) -> String {
    format!("version: 1\nresources:\n{text}")
}

#[track_caller]
fn assert_errors(text: &str, expected: &[&str]) {
    let errors = join(&[("a.yaml", text)]).expect_err("the file was accepted");
    assert_eq!(errors.len(), expected.len(), "{errors:#?}");
    for (error, start) in errors.iter().zip(expected) {
        assert!(error.starts_with(&format!("a.yaml:{start}")), "{error}\n  is not at {start}");
    }
}

fn names<'s>(resources: impl IntoIterator<Item = &'s Arc<Resource>>) -> Vec<&'s str> {
    resources.into_iter().map(|resource| resource.name.as_str()).collect()
}

fn relation(schema: Option<&str>, name: &str) -> RelationName {
    RelationName { schema: schema.map(str::to_owned), name: name.to_owned() }
}

const FULL: &str = r#"
version: 1
resources:
  - name: scheduler
    tables:
      - Public.Ticks
      - name: public."Odd Name"
        operations: [delete, insert, delete]
    functions: [public.run_tick]
    on_missing: allow
    mode: observe
  - name: a/b:c.d-e_1
    functions: [public.other]
opaque: allow
opaque_roles: {Legacy: reject, '"Old App"': require_token}
databases: [App, '"My-App"']
exempt_roles: [migrator]
"#;

#[test]
fn every_declaration_is_read() {
    let set = set(FULL);
    let first = &set.resources[0];
    assert_eq!(names(&set.resources), ["scheduler", "a/b:c.d-e_1"]);
    assert_eq!(first.tables[0].name.to_string(), "public.ticks");
    assert_eq!(first.tables[0].operations.len(), 5);
    assert_eq!(first.tables[1].name.to_string(), "public.\"Odd Name\"");
    assert_eq!(first.tables[1].operations, [Operation::Insert, Operation::Delete]);
    assert_eq!(first.functions[0].to_string(), "public.run_tick");
    assert_eq!((first.on_missing, first.mode, set.opaque), (OnMissing::Allow, Mode::Observe, Opaque::Allow));
    assert_eq!(set.databases.as_deref().unwrap(), ["app", "My-App"]);
    let roles = BTreeMap::from([("legacy".to_owned(), Opaque::Reject), ("Old App".to_owned(), Opaque::RequireToken)]);
    assert_eq!(set.opaque_roles, roles);
    assert_eq!(
        ["legacy", "Old App", "other"].map(|role| set.opaque_of(role)),
        [Opaque::Reject, Opaque::RequireToken, Opaque::Allow]
    );
    assert_eq!((set.exempt_roles.as_slice(), set.files), (["migrator".to_owned()].as_slice(), 1));
}

#[test]
fn omitted_columns_have_their_defaults() {
    let set = set(&resources("  - {name: r, tables: [s.t]}\n"));
    assert_eq!((set.resources[0].on_missing, set.resources[0].mode), (OnMissing::Reject, Mode::Enforce));
    assert_eq!((set.opaque, set.databases, set.exempt_roles.len()), (Opaque::Reject, None, 0));
}

#[test]
fn a_table_without_a_schema_gets_a_suggestion() {
    let errors = join(&[("a.yaml", &resources("  - name: r\n    tables: [ticks]\n"))]).unwrap_err();
    assert_eq!(errors, ["a.yaml:4:14: `ticks` has no schema: write `schema.ticks`"]);
}

#[test]
fn version_1_is_required() {
    assert_errors("resources: []\n", &["1:1: the file has no version"]);
    assert_errors("version: 2\n", &["1:10: this version"]);
    assert_errors("version: '1'\n", &["1:10: this version"]);
    assert_errors("", &["1:1: the file must be a mapping"]);
    assert_errors("- version\n", &["1:1: the file must be a mapping"]);
}

#[test]
fn unknown_keys_are_reported_with_their_position() {
    assert_errors("version: 1\nresource: []\n", &["2:1: unknown key `resource` in the file"]);
    assert_errors(
        &resources("  - name: r\n    table: [s.t]\n    tables: [{name: s.t, ops: [insert]}]\n"),
        &["4:5: unknown key `table` in a resource", "5:26: unknown key `ops` in a table"],
    );
    assert_errors("version: 1\n1: 2\n", &["2:1: a key of the file must be a word"]);
}

#[test]
fn wrong_types_are_reported_with_their_position() {
    assert_errors(
        "version: 1\nresources: x\nopaque: [a]\ndatabases: app\nexempt_roles: [1, true, [a]]\n",
        &[
            "2:12: `resources` must be a list",
            "3:9: `opaque` must be one of reject, require_token, allow",
            "4:12: `databases` must be a list",
            "5:16: `exempt_roles` must be text: put it in quotes",
            "5:19: `exempt_roles` must be text: put it in quotes",
            "5:25: `exempt_roles` must be text",
        ],
    );
    assert_errors(
        &resources("  - r\n  - name: 1\n    tables: s.t\n    functions:\n    on_missing: no\n    mode: off\n"),
        &[
            "3:5: a resource must be a mapping",
            "4:11: the name of a resource must be text",
            "5:13: `tables` must be a list",
            "6:14: `functions` must be a list",
            "7:17: `on_missing` must be one of reject, allow",
            "8:11: `mode` must be one of enforce, observe",
        ],
    );
    assert_errors("version: 1\ndatabases: []\n", &["2:12: `databases` is empty"]);
}

#[test]
fn only_documented_operations_are_accepted() {
    let with =
        |operations: &str| resources(&format!("  - name: r\n    tables: [{{name: s.t, operations: {operations}}}]\n"));
    assert_errors(&with("[lock]"), &["4:39: an operation must be one of insert, update, delete, truncate, ddl"]);
    assert_errors(&with("[]"), &["4:38: `operations` is empty"]);
    assert_errors(&with("insert"), &["4:38: `operations` must be a list"]);
    assert_eq!(set(&with("[ddl]")).resources[0].tables[0].operations, [Operation::Ddl]);
}

#[test]
fn invalid_names_are_reported_with_their_position() {
    assert_errors(
        &resources("  - {name: 'a b', tables: [s.t]}\n  - {name: '', tables: [s.u]}\n  - {name: é, tables: [s.v]}\n"),
        &["3:12: `a b` is not a valid name", "4:12: `` is not a valid name", "5:12: `é` is not a valid name"],
    );
    assert_errors(
        &resources("  - name: r\n    tables: [a.b.c, 's.\"t', {name: pg_temp.x}]\n    functions: [s.f()]\n"),
        &["4:14: `a.b.c` has more", "4:21: a double quote", "4:36: temporary", "5:17: name a function without"],
    );
    assert_errors("version: 1\ndatabases: [my-app]\n", &["2:13: `-` is not allowed here"]);
}

#[test]
fn a_resource_needs_a_name_and_a_fenced_object() {
    assert_errors(&resources("  - tables: [s.t]\n"), &["3:5: the resource has no `name`"]);
    assert_errors(&resources("  - name: r\n"), &["3:5: the resource fences nothing"]);
    assert_errors(&resources("  - {name: r, tables: [], functions: []}\n"), &["3:5: the resource fences nothing"]);
    assert_errors(&resources("  - {name: r, tables: [{operations: [ddl]}]}\n"), &["3:24: the table has no `name`"]);
}

#[test]
fn a_keyed_resource_has_one_resource_for_each_key() {
    let keyed = "  - name: shard/{shard}\n    election: /e/{shard}\n    tables: [{name: s.t, key: Shard}]\n";
    let set = join(&[("a.yaml", &resources(keyed))]).unwrap();
    let family = &set.resources[0];
    assert_eq!((family.name.as_str(), family.tables[0].key.as_deref()), ("shard/{shard}", Some("shard")));
    assert!(set.has_keys() && set.elections().is_empty() && family.issuer_shown().unwrap() == "/e/{shard}");
    let three = family.of_key("3").unwrap();
    assert_eq!((three.name.as_str(), three.election().unwrap().as_str()), ("shard/3", "/e/3"));
    assert_eq!(three.fingerprint, family.fingerprint);
    assert!(family.is_called("shard/3") && !family.is_called("shart/3"));
    let by_name = family.called("shard/3").unwrap();
    assert_eq!((&by_name.name, &by_name.issuer), (&three.name, &three.issuer));
    assert!(family.called("shard/{shard}").is_none() && three.called("shard/3").is_some());
    assert!(family.of_key("a/b").is_none(), "its election would be nested in that of `a`");
    assert!(family.of_key(&"x".repeat(257)).is_none());
}

#[test]
fn keys_are_declared_in_every_required_place() {
    assert_errors(
        &resources("  - name: shard/{shard}\n    tables: [s.t]\n    functions: [s.f]\n"),
        &[
            "4:14: the resource is keyed by {shard}: name the table's column",
            "5:16: a function call does not show its {shard}",
        ],
    );
    assert_errors(&resources("  - {name: r, tables: [{name: s.t, key: k}]}\n"), &["3:31: a table with a `key` needs"]);
    let keyed = |name: &str, election: &str| {
        resources(&format!("  - name: {name}\n    election: {election}\n    tables: [{{name: s.t, key: k}}]\n"))
    };
    assert_errors(&keyed("'a/{k}'", "/e"), &["4:15: the resources of all keys would share one election"]);
    assert_errors(&keyed("'a/{k}'", "'/e/{x}'"), &["4:15: the placeholder differs from that of the resource, {k}"]);
    assert_errors(&keyed("'a/{k}'", "'/e {k}'"), &["4:15: `/e {k}` is not a valid name for the election: "]);
    assert_errors(
        &keyed("'a/{k}{l}'", "'/e/{k}'"),
        &["3:11: `a/{k}{l}` is not a valid name for resources: it takes one"],
    );
    assert_errors(&keyed("'a b/{k}'", "'/e/{k}'"), &["3:11: `a b/{k}` is not a valid name for a resource"]);
    // The name has two lines, but the message has one.
    assert_errors(&keyed("\"a\\nb/{k}\"", "'/e/{k}'"), &["3:11: `a\\nb/{k}` is not a valid name for a resource"]);
}

#[test]
fn keys_cannot_share_the_name_or_election_of_another_resource() {
    let one = |name: &str, election: &str, table: &str| {
        let key = if name.contains('{') { ", key: k" } else { "" };
        format!("  - {{name: '{name}', election: '{election}', tables: [{{name: s.{table}{key}}}]}}\n")
    };
    let clash = |first: String, second: String, error: &str| assert_errors(&resources(&(first + &second)), &[error]);
    clash(one("a/{k}", "/e/{k}", "t"), one("a/3", "/f", "u"), "4:12: `a/3` and the resource at a.yaml:3:12 can have");
    clash(one("a/3", "/f", "u"), one("a/{k}", "/e/{k}", "t"), "4:12: `a/{k}` and the resource at a.yaml:3:12 can have");
    clash(one("a/{k}", "/e/{k}", "t"), one("a/b/{k}", "/f/{k}", "u"), "4:12: `a/b/{k}` and the resource at");
    for other in ["/e", "/e/3", "/e/3/x"] {
        let error = format!("4:27: the elections `{other}` and `/e/{{k}}`, at a.yaml:3:31, are nested");
        clash(one("a/{k}", "/e/{k}", "t"), one("r", other, "u"), &error);
    }
    let shared = one("a/{k}", "/e/{k}", "t") + &one("b/{k}", "/e/{k}", "u");
    assert!(join(&[("a.yaml", &resources(&shared))]).is_ok());
}

#[test]
fn a_lease_may_replace_an_election() {
    let named = |issuer: &str, table: &str| format!("  - {{name: {table}, {issuer}, tables: [s.{table}]}}\n");
    // Leases cannot be nested.
    let set =
        join(&[("a.yaml", &resources(&(named("lease: cron", "a") + &named("lease: cron/leader", "b"))))]).unwrap();
    assert_eq!(set.resources[0].lease(), Some("cron"));
    assert!(set.elections().is_empty() && set.resources[0].election().is_none());
    let twice = named("election: /cron, lease: cron", "a");
    assert_errors(&resources(&twice), &["3:39: the resource already has an `election`"]);
    assert_errors(&resources(&named("lease: 'a b'", "a")), &["3:22: `a b` is not a valid name for the lease: "]);
    let keyed = |lease: &str| {
        resources(&format!("  - {{name: 'job/{{id}}', lease: '{lease}', tables: [{{name: s.t, key: id}}]}}\n"))
    };
    let set = join(&[("a.yaml", &keyed("work/{id}"))]).unwrap();
    let family = &set.resources[0];
    assert!(family.has_leases_of_keys() && family.lease().is_none());
    assert_eq!(family.of_key("a/7").unwrap().lease(), Some("work/a/7"));
    assert!(family.of_key("a/").is_none(), "not a valid name");
    assert_errors(&keyed("work"), &["3:31: the resources of all keys would share one lease"]);
    assert_errors(
        &keyed("{id}"),
        &["3:31: `{id}` is not a valid name for the lease: the placeholder alone would match every name"],
    );
}

#[test]
fn elections_have_valid_names_and_are_not_nested() {
    let named = |name: &str, table: &str| format!("  - {{name: {table}, election: {name}, tables: [s.{table}]}}\n");
    let shared = named("/cron/leader", "a") + &named("/cron/leader", "b") + "  - {name: c, tables: [s.c]}\n";
    let set = join(&[("a.yaml", &resources(&shared))]).unwrap();
    let elections: Vec<_> = set.elections().into_iter().map(|election| election.to_string()).collect();
    assert_eq!(elections, ["/cron/leader"]);
    assert_eq!((set.resources[1].issuer.is_some(), set.resources[2].issuer.is_some()), (true, false));

    assert_errors(&resources(&named("/cron/", "a")), &["3:25: `/cron/` is not a valid name for the election: "]);
    assert_errors(&resources(&named("'a b'", "a")), &["3:25: `a b` is not a valid name for the election: "]);
    assert_errors(&resources(&named("7", "a")), &["3:25: `election` must be text"]);
    for (first, second) in [("/cron", "/cron/leader"), ("/cron/leader", "/cron")] {
        let both = resources(&(named(first, "a") + &named(second, "b")));
        let error = format!("4:25: the elections `{second}` and `{first}`, at a.yaml:3:25, are nested");
        assert_errors(&both, &[&error]);
    }
}

#[test]
fn nothing_is_declared_twice() {
    assert_errors(
        &resources(
            "  - {name: r, tables: [s.t, S.T], functions: [s.f]}\n  - {name: r, functions: [s.g, s.f]}\n  - {name: q, tables: [\"s.t\"]}\n",
        ),
        &[
            "3:29: the table s.t is already declared, at a.yaml:3:24",
            "4:12: the resource `r` is already declared, at a.yaml:3:12",
            "4:32: the function s.f is already declared, at a.yaml:3:47",
            "5:24: the table s.t is already declared, at a.yaml:3:24",
        ],
    );
    assert_errors("version: 1\nopaque: allow\nopaque: reject\n", &["3:1: "]);
}

#[test]
fn several_files_form_one_set() {
    let first = resources("  - {name: a, tables: [s.a]}\nopaque: allow\nexempt_roles: [x]\n");
    let second = resources("  - {name: b, tables: [s.b]}\n");
    let set = join(&[("1.yaml", &first), ("2.yaml", &second)]).unwrap();
    assert_eq!((names(&set.resources), set.opaque, set.files), (vec!["a", "b"], Opaque::Allow, 2));

    let third = resources("  - {name: b, tables: [s.a]}\nopaque: allow\ndatabases: [d]\nexempt_roles: []\n");
    let errors = join(&[("1.yaml", &first), ("2.yaml", &second), ("3.yaml", &third)]).unwrap_err();
    assert_eq!(
        errors,
        [
            "3.yaml:3:12: the resource `b` is already declared, at 2.yaml:3:12",
            "3.yaml:3:24: the table s.a is already declared, at 1.yaml:3:24",
            "3.yaml:4:9: `opaque` is already declared, at 1.yaml:4:9",
            "3.yaml:6:15: `exempt_roles` is already declared, at 1.yaml:5:15",
        ]
    );
}

#[test]
fn errors_of_all_files_are_reported() {
    let errors = join(&[("1.yaml", "version: 1\nx: 1\n"), ("2.yaml", "a: [\n"), ("3.yaml", "{}")]).unwrap_err();
    let starts: Vec<_> = errors.iter().map(|error| &error[..8]).collect();
    assert_eq!(starts, ["1.yaml:2", "2.yaml:1", "3.yaml:1"]);
}

#[test]
fn relations_are_found_by_their_names() {
    let set = set(&resources(
        "  - name: a\n    tables: [{name: s.t, operations: [truncate, ddl]}, s.u]\n  - {name: b, tables: [r.t, r.v], functions: [r.f]}\n  - {name: c, functions: [s.f]}\n",
    ));
    let found = |schema, name, operation| {
        let relation = relation(schema, name);
        let found = set.fenced(&relation, operation).map(|(resource, _)| resource.name.clone());
        found.collect::<Vec<_>>()
    };
    assert_eq!(found(Some("s"), "t", Operation::Ddl), ["a"]);
    assert_eq!(found(None, "t", Operation::Ddl), ["a", "b"]);
    assert_eq!(found(None, "t", Operation::Insert), ["b"]);
    assert_eq!(found(Some("s"), "t", Operation::Lock), Vec::<String>::new());
    assert_eq!(found(Some("s"), "u", Operation::Lock), ["a"]);
    assert_eq!(found(Some("pg_temp"), "t", Operation::Ddl), Vec::<String>::new());
    assert_eq!(found(Some("s"), "x", Operation::Ddl), Vec::<String>::new());

    let called = |schema: Option<&str>, name: &str| {
        let function = FunctionName { schema: schema.map(str::to_owned), name: name.to_owned() };
        names(set.resources_of_function(&function))
    };
    assert_eq!(called(None, "f"), ["b", "c"]);
    assert_eq!(called(Some("s"), "f"), ["c"]);
    assert_eq!(called(Some("x"), "f"), Vec::<&str>::new());
}

#[test]
fn a_fingerprint_depends_only_on_the_meaning() {
    let first = resources("  - {name: r, tables: [s.t, s.u], functions: [s.f, s.g]}\nexempt_roles: [x, y]\n");
    let same = "# note\nexempt_roles: [Y, x]\nresources:\n  - {name: q, tables: [s.q]}\n  - functions: [s.g, s.f]\n    name: r\n    tables: [s.U, {name: s.t, operations: [ddl, truncate, delete, update, insert]}]\nversion: 1\n";
    let of = |text: &str| {
        let set = set(text);
        set.resources.iter().find(|resource| resource.name == "r").unwrap().fingerprint.clone()
    };
    let fingerprint = of(&first);
    assert_eq!(fingerprint.len(), 32);
    assert!(fingerprint.bytes().all(|byte| byte.is_ascii_hexdigit()));
    assert_eq!(fingerprint, of(same));
    let all_in_the_database = [
        first.replace("s.u]", "s.v]"),
        first.replace("s.g]", "s.h]"),
        first.replace("name: r,", "name: r, mode: observe,"),
        first.replace("name: r,", "name: r, on_missing: allow,"),
        first.replace("name: r,", "name: r, election: /cron,"),
        first.replace("name: r,", "name: r, lease: /cron,"),
        first.replace("s.u]", "{name: s.u, operations: [insert]}]"),
        first.replace("[x, y]", "[x]"),
        format!("{first}opaque: allow\n"),
        format!("{first}opaque: require_token\n"),
        format!("{first}databases: [d]\n"),
    ];
    for other in all_in_the_database {
        assert_ne!(fingerprint, of(&other), "{other}");
    }
}

#[test]
fn only_yaml_files_of_a_directory_are_read() {
    let directory = std::env::temp_dir().join(format!("fencegate-policies-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    assert!(load(&directory).unwrap_err()[0].message.contains("no file in it ends in .yaml or .yml"));
    for (name, text) in [("a.yaml", "version: 1"), ("b.yml", "version: 1"), (".c.yaml", "x"), ("d.txt", "x")] {
        fs::write(directory.join(name), text).unwrap();
    }
    let files = load(&directory).map(|set| set.files);
    fs::create_dir_all(directory.join("e.yaml")).unwrap();
    let not_a_file = load(&directory);
    fs::write(directory.join("f.yaml"), vec![b'#'; (1 << 20) + 1]).unwrap();
    let too_large = load(&directory);
    fs::remove_dir_all(&directory).unwrap();
    assert_eq!(files.unwrap(), 2);
    let errors = not_a_file.unwrap_err();
    assert_eq!((errors[0].line, errors[0].column), (1, 1));
    assert!(errors[0].file.ends_with("e.yaml") && errors[0].message.contains("not a regular file"));
    assert!(too_large.unwrap_err()[1].message.contains("larger than"));
    let gone = load(&directory).unwrap_err();
    assert!(gone[0].file == directory && gone[0].message.starts_with("cannot read the directory"));
}

#[test]
fn the_examples_load_as_one_set() {
    let set = load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../policies")).unwrap();
    assert_eq!(names(&set.resources), ["job/{id}", "dispatcher", "reports/nightly", "scheduler", "shard/{shard}"]);
}
