//! The README is true: its `sh` blocks run, in their order, then the program of docs/leading.md, and the demo prints
//! what it says.
//!
//! The blocks run as they stand, save that the ports are those of a throwaway server. `make` targets are only asked
//! what they would do: the demo and the tests are run by themselves, and building them twice proves nothing.

use crate::support::guardian::{Folder, Port, Program};
use crate::support::page::{blocks, path, shell};
use crate::support::proxy::fencegate;
use crate::support::wait::{DEADLINE, wait_until};
use crate::support::{Etcd, Options, Postgres, programs};
use std::collections::BTreeSet;
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

const README: &str = include_str!("../../README.md");
const LEADING: &str = include_str!("../../docs/leading.md");

#[test]
fn every_command_runs() {
    let postgres = Postgres::start(Options::default());
    postgres.sql("CREATE DATABASE app");
    postgres.sql("ALTER ROLE postgres PASSWORD 'first'; CREATE ROLE app LOGIN PASSWORD 'change-me'");
    postgres.sql_in("app", "CREATE TABLE public.ticks (tick text PRIMARY KEY, run_by text)");
    postgres.sql_in("app", "INSERT INTO public.ticks VALUES ('12:00'); GRANT ALL ON public.ticks TO app");
    // Who connects as the README does is asked for a password, the superuser too; the tests, by the socket, are not.
    fs::write(postgres.value("SHOW hba_file"), "local all all trust\nhost all all all scram-sha-256\n").unwrap();
    postgres.sql("SELECT pg_reload_conf()");
    let etcd = Etcd::start();
    let (folder, port) = (Folder::new("readme"), Port::claim());
    let passwords = folder.join(".pgpass");
    fs::write(&passwords, "*:*:*:postgres:first\n*:*:*:app:change-me\n").unwrap();
    fs::set_permissions(&passwords, fs::Permissions::from_mode(0o600)).unwrap();
    let here = |text: &str| {
        text.replace("127.0.0.1:5432", &format!("127.0.0.1:{}", postgres.port()))
            .replace("127.0.0.1:6432", &format!("127.0.0.1:{}", port.number()))
            .replace("http://127.0.0.1:2379", &etcd.url())
            .replace("port=5432", &format!("port={}", postgres.port()))
            .replace("port=6432", &format!("port={}", port.number()))
    };
    let mut proxy = None;
    let blocks = blocks(README, "sh");
    assert!(blocks.len() >= 6, "{blocks:?}");
    for block in blocks {
        let script = here(&block);
        if script.starts_with("make ") {
            assert_eq!(script.lines().count(), 1);
            run(
                "make --dry-run",
                &script.replacen("make ", "make --dry-run ", 1),
                Path::new(env!("CARGO_MANIFEST_DIR")),
            );
        } else if script.starts_with("fencegate proxy ") {
            proxy = Some(start(&script, &folder, port.number()));
        } else {
            run(&block, &script, folder.path());
        }
    }
    assert!(proxy.is_some(), "the README says how to run the proxy");
    let landed = "SELECT run_by, resource, token::text FROM ticks, fencegate.epoch";
    let row = |run_by: &str, token: &str| [[run_by, "scheduler", token].map(|text| Some(text.to_owned()))];
    // The first key of an etcd has create_revision 2; that it is deleted is revision 3.
    assert_eq!(postgres.sql_in("app", landed), row("node-a", "2"), "the README's write landed, and was fenced");
    program_in_rust(&folder, here);
    assert_eq!(postgres.sql_in("app", landed), row("node-b", "4"), "so did that of the program in Rust");
}

/// Builds the program in a package of its own, with the versions that we build with, and runs it.
fn program_in_rust(folder: &Folder, here: impl Fn(&str) -> String) {
    let only = |language| match blocks(LEADING, language).as_slice() {
        [block] => block.clone(),
        several => panic!("{several:?}"),
    };
    let ours = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dependencies =
        only("toml").replace("git = \"https://git.example.com/fencegate.git\"", &format!("path = {ours:?}"));
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
    let blocks = blocks(README, "text");
    let shown = blocks.iter().find(|block| block.starts_with("2. ")).expect("the README shows a scene of the demo");
    let printed = without_times(&String::from_utf8(output.stdout).unwrap());
    let missing: Vec<_> = without_times(shown).into_iter().filter(|line| !printed.contains(line)).collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn every_link_leads_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = docs.chain(["README.md", "CONTRIBUTING.md"].map(|page| root.join(page)));
    for page in pages.filter(|page| page.extension().is_some_and(|extension| extension == "md")) {
        let text = fs::read_to_string(&page).unwrap();
        let links = text.split("](").skip(1).map(|rest| rest.split([')', '#']).next().unwrap());
        for link in links.filter(|link| !link.contains("://")) {
            assert!(page.parent().unwrap().join(link).exists(), "{}: {link}", page.display());
        }
    }
}

/// The lines, whatever their times and their order: answers that come in the same millisecond may change places.
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

fn run(shown: &str, script: &str, folder: &Path) {
    let output = shell(script).current_dir(folder).env("HOME", folder).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{shown}\n{out}{error}");
}

/// Starts what runs until it is stopped.
fn start(script: &str, folder: &Folder, port: u16) -> Program {
    let path = path();
    let script = format!("cd '{}' && PATH='{path}' exec {script}", folder.path().display());
    let mut program = Program::start(&["sh", "-c", &script], &folder.join("log"), "KILL");
    wait_until("the proxy listens", DEADLINE, || {
        let log = || fs::read_to_string(folder.join("log")).unwrap_or_default();
        assert_eq!(program.exit_status(), None, "{}", log());
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    program
}
