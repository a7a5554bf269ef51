//! The output of `fencegate policy check`.
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn fencegate(arguments: &[&str], directory: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fencegate")).args(arguments).current_dir(directory).output().unwrap()
}

/// Creates the files in a new directory `policies` and returns its parent.
fn directory(name: &str, files: &[(&str, &str)]) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(directory.join("policies")).unwrap();
    for (file, text) in files {
        fs::write(directory.join("policies").join(file), text).unwrap();
    }
    directory
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn good_policies_are_counted() {
    let one = "version: 1\ndatabases: [app]\nresources:\n  - {name: r, tables: [public.t]}\n";
    let output = fencegate(&["policy", "check", "policies"], &directory("good", &[("a.yml", one), (".b.yml", "x")]));
    assert_eq!(output.status.code(), Some(0));
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("policies: 1 resource, 1 table, in 1 file\n", ""));
}

#[test]
fn the_examples_are_valid_and_several_resources_cause_a_warning() {
    let output = fencegate(&["policy", "check", "policies"], Path::new(env!("CARGO_MANIFEST_DIR")));
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stdout), "policies: 5 resources, 7 tables, in 5 files\n");
    assert!(text(&output.stderr).starts_with("warning: 3 resources have neither an election nor a lease"));
}

#[test]
fn resources_with_elections_cause_no_warning() {
    let elected = "version: 1\ndatabases: [app]\nresources:\n  - {name: r, election: /e, tables: [public.t]}\n";
    let more =
        elected.to_owned() + "  - {name: s, election: /e, tables: [public.s]}\n  - {name: q, tables: [public.q]}\n";
    let output = fencegate(&["policy", "check", "policies"], &directory("elected", &[("a.yaml", &more)]));
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
    let two = more + "  - {name: p, tables: [public.p]}\n";
    let output = fencegate(&["policy", "check", "policies"], &directory("two", &[("a.yaml", &two)]));
    assert_eq!(output.status.code(), Some(0));
    let warning = "warning: 2 resources have neither an election nor a lease: ";
    assert!(text(&output.stderr).starts_with(warning) && text(&output.stderr).contains("'q=1, p=2'"));
}

#[test]
fn a_keyed_resource_without_an_election_causes_a_warning() {
    let keyed = "version: 1\nresources:\n  - {name: 'shard/{s}', tables: [{name: public.t, key: s}]}\n";
    let output = fencegate(&["policy", "check", "policies"], &directory("keyed", &[("a.yaml", keyed)]));
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "policies: 1 resource, 1 table, in 1 file\n"));
    let warning = "warning: shard/{s} has neither an election nor a lease: ";
    assert!(text(&output.stderr).starts_with(warning) && text(&output.stderr).contains("'shard/1=1, shard/2=2'"));
}

#[test]
fn statements_that_bypass_the_proxy_are_warned_about() {
    let one = "version: 1\ndatabases: [app]\nresources:\n  - {name: r, tables: [public.t]}\n";
    for (setting, expected) in [
        ("opaque: reject\n", ""),
        ("opaque: allow\n", "warning: `opaque: allow` lets DO"),
        ("opaque: require_token\n", "warning: `opaque: require_token` does not cover every write"),
        ("opaque_roles: {legacy: allow}\n", "warning: DO, CALL and similar statements of legacy bypass the proxy"),
    ] {
        let files = [("a.yaml", one.to_owned() + setting)];
        let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
        let output = fencegate(&["policy", "check", "policies"], &directory("opaque", &files));
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0));
        assert!(said.starts_with(expected) && said.is_empty() == expected.is_empty(), "{setting}{said}");
        assert!(said.is_empty() || said.contains("fencegate guard install"), "{said}");
    }
}

/// Such policies fence the tables of these names in every database.
#[test]
fn policies_without_databases_are_warned_about() {
    let one = "version: 1\nresources:\n  - {name: r, tables: [public.t]}\n";
    for (setting, expected) in [
        ("", "in every database that has them, and reject DO and CALL there (LF004): list the intended ones"),
        ("opaque: require_token\n", "in every database that has them: list the intended ones"),
        ("databases: [app]\n", ""),
    ] {
        let files = [("a.yaml", one.to_owned() + setting)];
        let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
        let output = fencegate(&["policy", "check", "policies"], &directory("databases", &files));
        let warning = text(&output.stderr).lines().find(|line| line.contains("`databases`")).unwrap_or_default();
        assert_eq!(output.status.code(), Some(0));
        assert!(warning.contains(expected) && warning.is_empty() == expected.is_empty(), "{setting}{warning}");
    }
}

#[test]
fn every_error_is_a_line_with_its_place() {
    let a = "version: 1\nresources:\n  - {name: r, tables: [public.t]}\n  - {name: s, tables: [t], moed: x}\n";
    let b = "version: 1\nresources:\n  - {name: r, tables: [public.T]}\n";
    let output = fencegate(&["policy", "check", "policies"], &directory("bad", &[("a.yaml", a), ("b.yaml", b)]));
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), ""));
    let lines: Vec<_> = text(&output.stderr).lines().collect();
    let starts = [
        "policies/a.yaml:4:24: `t` has no schema",
        "policies/a.yaml:4:28: unknown key `moed`",
        "policies/b.yaml:3:12: the resource `r` is already declared, at policies/a.yaml:3:12",
        "policies/b.yaml:3:24: the table public.t is already declared, at policies/a.yaml:3:24",
    ];
    assert_eq!(lines.len(), starts.len(), "{lines:#?}");
    for (line, start) in lines.iter().zip(starts) {
        assert!(line.starts_with(start), "{line}");
    }
}

#[test]
fn a_missing_directory_is_a_configuration_error() {
    let output = fencegate(&["policy", "check", "nowhere"], &directory("missing", &[]));
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).starts_with("nowhere:1:1: cannot read the directory"));
}

#[test]
fn wrong_usage_exits_with_2_and_help_with_0() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    for wrong in [&["policy", "check"][..], &["policy", "check", "policies", "--etcd", "x"], &["nonsense"], &[]] {
        let output = fencegate(wrong, here);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        let said = text(&output.stderr);
        assert!(said.starts_with("fencegate: ") && said.trim_end().lines().count() == 1, "{wrong:?}: {said}");
    }
    let output = fencegate(&["--help"], here);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).contains("policy"));
}
