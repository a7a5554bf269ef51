//! Imports run one way, and what has to run without sockets, tasks and clocks knows none.

use std::fs;
use std::path::{Path, PathBuf};

/// Each of these imports only those above it, and files within it as they like.
const LAYERS: &[&str] = &[
    "yaml",
    "crowd",
    "listen",
    "log_limit",
    "wire",
    "statement",
    "apart",
    "etcd",
    "policy",
    "config",
    "tls",
    "sql",
    "metrics",
    "catalogue",
    "fence",
    "guard",
    "session",
    "operate",
    "state",
    "net",
    "server",
    "leader",
    "stage",
    "demo",
    "cli",
];

/// What runs the same whenever and wherever it runs. Policies are stamped with the time at which they are loaded.
const PURE: &[(&str, &[&str])] = &[
    (
        "session",
        &["tokio", "std::net", "Instant::now", "SystemTime", ".elapsed()", "std::fs", "std::process", "spawn("],
    ),
    ("wire", &["tokio", "std::net", "Instant::now", "SystemTime", ".elapsed()", "std::fs", "std::process", "spawn("]),
    (
        "statement",
        &["tokio", "std::net", "Instant::now", "SystemTime", ".elapsed()", "std::fs", "std::process", "spawn("],
    ),
    (
        "catalogue",
        &["tokio::", "connect(", "std::net", "Instant::now", "SystemTime", ".elapsed()", "std::fs", "spawn("],
    ),
    ("policy", &["tokio", "std::net", "SystemTime", ".elapsed()", "std::process", "spawn("]),
];

/// The code of a file: without comments and without tests.
fn code(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let code = text.split("#[cfg(test)]\n#[allow").next().unwrap().split("#[cfg(test)]\nmod tests {").next().unwrap();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.map(|line| line.to_owned() + "\n").collect()
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn files(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let files =
        entries.filter(|path| !path.ends_with("tests") && !path.ends_with("tests.rs")).flat_map(|it| files(&it));
    files.filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
}

/// The modules of the crate that some code names: `crate::` and what follows, also in braces.
fn imported(code: &str) -> Vec<&str> {
    let names = code.split("crate::").skip(1).flat_map(|rest| match rest.strip_prefix('{') {
        Some(list) => list.split('}').next().unwrap().split(',').map(str::trim).collect(),
        None => vec![rest],
    });
    names.map(|rest| rest.split(|it: char| !it.is_alphanumeric() && it != '_').next().unwrap()).collect()
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
            wrong
                .extend(imported(&code).into_iter().filter(above).map(|it| format!("{} imports {it}", file.display())));
        }
        found.push(layer);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(found.len(), LAYERS.len(), "of {LAYERS:?} there are {found:?}");
}

#[test]
fn what_decides_knows_no_sockets_and_no_clock() {
    let mut wrong = Vec::new();
    for (layer, unknown) in PURE {
        for file in files(&source().join(layer)) {
            let code = code(&file);
            let known = unknown.iter().filter(|name| code.contains(**name));
            wrong.extend(known.map(|name| format!("{}: {name}", file.display())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
