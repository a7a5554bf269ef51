//! Rules that Cargo cannot check: modules of the program import one way, and the deciding crates use no sockets, tasks or clocks.

use std::fs;
use std::path::{Path, PathBuf};

/// Each of these imports only those above it, and files within it as they like.
const LAYERS: &[&str] = &[
    "waiting_connections",
    "listen",
    "log_queue",
    "escape",
    "picture",
    "config",
    "tls",
    "metrics",
    "operate",
    "state",
    "net",
    "server",
    "stage",
    "timeline",
    "demo",
    "cli",
];

/// What a session machine and all below it do without. tokio-postgres is there for the rows that it has read.
const OUTSIDE: &[&str] =
    &["tokio", "std::net", "Instant::now", "SystemTime", ".elapsed()", "std::fs", "std::process", "connect(", "spawn("];

/// The layers that run the same wherever and whenever they run, with what each may have of it: policies are read from files,
/// and stamped with the time of that.
const PURE: &[(&str, &[&str])] =
    &[("session", &[]), ("wire", &[]), ("statement", &[]), ("catalog", &[]), ("policy", &["Instant::now", "std::fs"])];

/// The code of a file: without comments and without the tests at its end.
fn code(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let code = text.split("\nmod tests {").next().unwrap();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.map(|line| line.replace("tokio_postgres", "") + "\n").collect()
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("crates")
}

fn files(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let files = entries
        .filter(|path| !["tests", "tests.rs", "reader_process"].iter().any(|it| path.ends_with(it)))
        .flat_map(|it| files(&it));
    files.filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
}

/// The modules of the crate that some code names.
fn imported(code: &str) -> impl Iterator<Item = &str> {
    let first = |path: &str| path.find(|it: char| !it.is_alphanumeric() && it != '_').unwrap_or(path.len());
    let names = code.split("crate::").skip(1).map(move |path| &path[..first(path)]);
    names.inspect(|name| assert_ne!(*name, "", "a list of modules hides what is imported"))
}

#[test]
fn imports_run_one_way() {
    let mut wrong = Vec::new();
    let mut found = Vec::new();
    for entry in fs::read_dir(source()).unwrap() {
        let path = entry.unwrap().path();
        let layer = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if ["lib", "main"].contains(&layer.as_str()) {
            continue;
        }
        let Some(place) = LAYERS.iter().position(|it| **it == layer) else {
            wrong.push(format!("{layer} is no layer"));
            continue;
        };
        for file in files(&path) {
            let code = code(&file);
            let above = |it: &&str| LAYERS.iter().position(|layer| layer == it).is_some_and(|other| other > place);
            wrong.extend(imported(&code).filter(above).map(|it| format!("{} imports {it}", file.display())));
        }
        found.push(layer);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(found.len(), LAYERS.len(), "of {LAYERS:?} there are {found:?}");
}

#[test]
fn deciding_modules_use_no_sockets_and_no_clock() {
    let mut wrong = Vec::new();
    for (layer, allowed) in PURE {
        for file in files(&crates().join(layer).join("src")) {
            let code = code(&file);
            let known = OUTSIDE.iter().filter(|name| !allowed.contains(name) && code.contains(**name));
            wrong.extend(known.map(|name| format!("{}: {name}", file.display())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Sessions call these layers from relay threads, where `tokio::spawn` would leave the task. Those of `net` wait for a place in
/// a queue, for their own session.
#[test]
fn what_sessions_share_is_spawned_in_the_background() {
    let count =
        |path: PathBuf| -> usize { files(&path).iter().map(|file| code(file).matches("tokio::spawn(").count()).sum() };
    let fence = |file| crates().join("fence/src").join(file);
    let program = |layer| source().join(layer);
    let spawned = [program("state"), fence("supervise.rs"), fence("log_limit.rs"), program("net")].map(count);
    assert_eq!(spawned, [0, 0, 0, 2], "in state, supervise, log_limit and net");
}
