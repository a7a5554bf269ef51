//! Rules that Cargo cannot check: modules of the program import in one direction, only small groups of files import
//! each other in a circle, and the deciding crates use no sockets, tasks or clocks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each layer may import only the layers above it. Within a layer, imports are unrestricted.
const LAYERS: &[&str] = &[
    "waiting_connections",
    "listen",
    "relay",
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

/// Names that the session's state machine and the layers below it must not use. tokio-postgres is permitted for rows
/// that were already read.
const OUTSIDE: &[&str] =
    &["tokio", "std::net", "Instant::now", "SystemTime", ".elapsed()", "std::fs", "std::process", "connect(", "spawn("];

/// Layers whose behavior does not depend on place or time, each with its exceptions: `policy` reads files and records
/// when it did so.
const PURE: &[(&str, &[&str])] =
    &[("session", &[]), ("wire", &[]), ("statement", &[]), ("catalog", &[]), ("policy", &["Instant::now", "std::fs"])];

/// The code of a file without comments and without the tests at its end.
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
    let files =
        entries.filter(|path| !["tests", "tests.rs"].iter().any(|it| path.ends_with(it))).flat_map(|it| files(&it));
    files.filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
}

/// Modules of the crate that the code names.
fn imported(code: &str) -> impl Iterator<Item = &str> {
    let first = |path: &str| path.find(|it: char| !it.is_alphanumeric() && it != '_').unwrap_or(path.len());
    let names = code.split("crate::").skip(1).map(move |path| &path[..first(path)]);
    names.inspect(|name| assert_ne!(*name, "", "a list of imports hides the imported modules"))
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
        let decides = |file: &PathBuf| !file.iter().any(|it| it == "reader_process");
        for file in files(&crates().join(layer).join("src")).into_iter().filter(decides) {
            let code = code(&file);
            let known = OUTSIDE.iter().filter(|name| !allowed.contains(name) && code.contains(**name));
            wrong.extend(known.map(|name| format!("{}: {name}", file.display())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Sessions call these layers from relay threads, where `tokio::spawn` would leave the task. The tasks that `net`
/// spawns wait in a queue for their own session.
#[test]
fn shared_tasks_are_spawned_in_the_background() {
    let count =
        |path: PathBuf| -> usize { files(&path).iter().map(|file| code(file).matches("tokio::spawn(").count()).sum() };
    let fence = |file| crates().join("fence/src").join(file);
    let program = |layer| source().join(layer);
    let spawned = [program("state"), fence("supervise.rs"), fence("log_limit.rs"), program("net")].map(count);
    assert_eq!(spawned, [0, 0, 0, 2], "in state, supervise, log_limit and net");
}

/// Maximum number of files of a crate that may import each other in a circle.
const MOST_IN_A_CIRCLE: usize = 3;

/// The names in a path.
type Names = Vec<String>;

/// One file of a crate.
#[derive(Default)]
struct Module {
    /// Paths that its code uses.
    named: BTreeSet<Names>,
    /// Re-exported paths, by their last name.
    exported: BTreeMap<String, Names>,
}

fn is_of_path(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_' || letter == ':'
}

/// Expands the lists in imports: `a::{b, c}` becomes `a::b,a::c`.
fn written_out(mut code: String) -> String {
    while let Some(open) = code.rfind("::{") {
        let start = code[..open].rfind(|it| !is_of_path(it)).map_or(0, |before| before + 1);
        let close = open + code[open..].find('}').unwrap();
        let items = code[open + "::{".len()..close].split(',').map(str::trim).filter(|item| !item.is_empty());
        let paths: Vec<String> = items.map(|item| format!("{}::{item}", &code[start..open])).collect();
        code.replace_range(start..=close, &paths.join(","));
    }
    code
}

fn module(file: &Path) -> Module {
    let names = |path: &str| path.trim_matches(':').split("::").map(str::to_owned).collect::<Names>();
    let mut module = Module::default();
    for line in written_out(code(file)).lines().filter(|line| !line.contains("mod ")) {
        match line.trim_start_matches("    ").split_once(" use ") {
            Some((visibility, paths)) if visibility.starts_with("pub") => {
                for path in paths.trim_end_matches(';').split(',').filter(|path| path.contains("::")) {
                    let (path, name) = path.split_once(" as ").unwrap_or((path, path.rsplit("::").next().unwrap()));
                    module.exported.insert(name.to_owned(), names(path));
                }
            }
            _ => module.named.extend(line.split(|it| !is_of_path(it)).map(names)),
        }
    }
    module
}

/// The module that defines a name, or None if another crate defines it.
fn defining(modules: &BTreeMap<Names, Module>, module: &[String], named: &[String]) -> Option<Names> {
    let child = [module, &named[..1]].concat();
    let mut path = match (named[0].as_str(), named.len()) {
        (name, _) if modules[module].exported.contains_key(name) => child,
        (_, 1) => return None,
        ("crate", _) => Vec::new(),
        ("self", _) => module.to_vec(),
        ("super", _) => module.split_last()?.1.to_vec(),
        _ if modules.contains_key(&child) => child,
        _ => return None,
    };
    for name in &named[1..] {
        if name == "super" { drop(path.pop()) } else { path.push(name.clone()) }
    }
    let length = (0..=path.len()).rev().find(|length| modules.contains_key(&path[..*length]))?;
    let (module, rest) = path.split_at(length);
    let exported = modules[module].exported.get(rest.first().map_or("", String::as_str));
    exported.and_then(|path| defining(modules, module, path)).or(Some(module.to_vec()))
}

/// All modules that a module imports, directly or indirectly.
fn reached<'a>(imports: &'a BTreeMap<Names, BTreeSet<Names>>, from: &'a Names) -> BTreeSet<&'a Names> {
    let (mut reached, mut left) = (BTreeSet::new(), vec![from]);
    while let Some(module) = left.pop() {
        left.extend(imports[module].iter().filter(|it| reached.insert(*it)));
    }
    reached
}

#[test]
fn circles_of_imports_are_small() {
    let mut wrong = BTreeSet::new();
    let packages = fs::read_dir(crates()).unwrap().map(|entry| entry.unwrap().path().join("src"));
    for root in packages.chain([source()]) {
        let name = |file: &Path| -> Names {
            let path = file.strip_prefix(&root).unwrap().with_extension("");
            let names = path.iter().map(|it| it.to_str().unwrap().to_owned());
            names.filter(|it| it != "lib" && it != "mod").collect()
        };
        let files = files(&root).into_iter().filter(|file| !file.ends_with("main.rs"));
        let modules: BTreeMap<Names, Module> = files.map(|file| (name(&file), module(&file))).collect();
        let imports = modules.iter().map(|(name, module)| {
            let defining = module.named.iter().filter_map(|named| defining(&modules, name, named));
            (name.clone(), defining.filter(|it| it != name).collect())
        });
        let imports: BTreeMap<Names, BTreeSet<Names>> = imports.collect();
        let reached: BTreeMap<&Names, _> = imports.keys().map(|it| (it, reached(&imports, it))).collect();
        for (module, others) in &reached {
            let circle = others.iter().filter(|it| reached[**it].contains(module));
            let circle: Vec<PathBuf> = circle.map(|it| root.join(it.join("/"))).collect();
            if circle.len() > MOST_IN_A_CIRCLE {
                wrong.insert(circle);
            }
        }
    }
    assert!(wrong.is_empty(), "circles of imports: {wrong:#?}");
}

/// The steps of the protocol are functions of the store and plain state. Only the watcher uses the database.
#[test]
fn steps_of_the_protocol_do_not_use_the_database() {
    let fence = files(&crates().join("fence/src"));
    let uses = |file: &PathBuf| code(file).contains("::database::");
    let found: Vec<_> = fence.iter().filter(|it| uses(it)).filter_map(|it| it.file_name()?.to_str()).collect();
    assert_eq!(found, ["watch.rs"]);
}
