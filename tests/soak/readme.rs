//! docs/lead/rust.md shows a working program in Rust, and docs/why.md the demo's output.
//! `tests/behaviour/pages.rs` runs the commands of README.

use crate::support::guardian::Folder;
use crate::support::page::blocks;
use crate::support::proxy::fencegate;
use crate::support::{Etcd, Options, Postgres, Proxy, programs};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const WHY: &str = include_str!("../../docs/why.md");
const RUST: &str = include_str!("../../docs/lead/rust.md");
/// The policy of docs/lead/etcd.md.
const POLICIES: &str = "version: 1
resources:
  - name: scheduler
    election: /cron/scheduler/leader
    tables: [public.ticks]
";

#[test]
fn the_program_in_rust_leads_and_writes() {
    let postgres = Postgres::start(Options::default());
    postgres.sql("CREATE DATABASE app");
    postgres.sql("CREATE ROLE app LOGIN PASSWORD 'change-me'");
    postgres.sql_in("app", "CREATE TABLE public.ticks (tick text PRIMARY KEY, run_by text)");
    postgres.sql_in("app", "INSERT INTO public.ticks VALUES ('12:00'); GRANT SELECT, UPDATE ON public.ticks TO app");
    let control = postgres.control_url() + "app";
    programs::run(fencegate().args(["init", "--control", &control]));
    let etcd = Etcd::start();
    let proxy = Proxy::start(&postgres, POLICIES, &["--etcd", &etcd.url()]);
    let (_, port) = proxy.address().host_and_port();
    let folder = Folder::new("readme");
    program_in_rust(&folder, |text| {
        text.replace("http://127.0.0.1:2379", &etcd.url()).replace("port=6432", &format!("port={port}"))
    });
    // The first key of an etcd has create_revision 2.
    let landed = "SELECT run_by, resource, token::text FROM ticks, fencegate_state.epoch";
    let row = ["node-b", "scheduler", "2"].map(|text| Some(text.to_owned()));
    assert_eq!(postgres.sql_in("app", landed), [row]);
}

/// Builds the program in a separate package, with fencegate's versions of dependencies, and runs it.
fn program_in_rust(folder: &Folder, here: impl Fn(&str) -> String) {
    let only = |language| match blocks(RUST, language).as_slice() {
        [block] => block.clone(),
        several => panic!("{several:?}"),
    };
    let ours = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dependencies = only("toml").replace(
        "git = \"https://git.example.com/fencegate.git\"",
        &format!("path = {:?}", ours.join("crates/leader")),
    );
    assert!(dependencies.contains(" path = "), "{dependencies}");
    let package = folder.join("node-b");
    fs::create_dir_all(package.join("src")).unwrap();
    fs::write(
        package.join("Cargo.toml"),
        format!("[package]\nname = \"node-b\"\nedition = \"2024\"\n\n{dependencies}\n"),
    )
    .unwrap();
    fs::write(package.join("src/main.rs"), here(&only("rust"))).unwrap();
    fs::copy(ours.join("Cargo.lock"), package.join("Cargo.lock")).unwrap();
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("readme");
    let mut cargo = programs::cargo();
    cargo.args(["build", "--quiet", "--offline", "--manifest-path"]).arg(package.join("Cargo.toml"));
    programs::run(cargo.arg("--target-dir").arg(&target).env("CARGO_PROFILE_DEV_DEBUG", "0"));
    programs::run(&mut Command::new(target.join("debug/node-b")));
}

#[test]
fn the_demo_prints_what_is_shown() {
    let output = fencegate().arg("demo").stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let blocks = blocks(WHY, "text");
    let shown = blocks.iter().find(|block| block.starts_with("2. ")).expect("docs/why.md shows a scene of the demo");
    let printed = without_times(&String::from_utf8(output.stdout).unwrap());
    let missing: Vec<_> = without_times(shown).into_iter().filter(|line| !printed.contains(line)).collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

/// The lines without times. A set, because answers within a millisecond may be in any order.
fn without_times(text: &str) -> BTreeSet<String> {
    let is_number = |word: &str| word.starts_with(|c: char| c.is_ascii_digit()) && word.parse::<f64>().is_ok();
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let timeless = words.iter().enumerate().filter(|(place, word)| {
            let next = words.get(place + 1).copied().unwrap_or_default();
            !(is_number(word) && next.starts_with("ms"))
        });
        timeless.map(|(_, word)| *word).collect::<Vec<_>>().join(" ")
    };
    text.lines().map(line).filter(|line| !line.is_empty()).collect()
}
