//! README, the tutorial and the quickstarts are correct: a new user can follow them in order, and every link leads to a
//! heading. Tests run the commands as written, with the ports of temporary servers.

use crate::support::page::Reader;
use crate::support::{Etcd, Options, Postgres};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn every_command_runs_and_prints_the_documented_output() {
    let postgres = Postgres::start(Options::default());
    let etcd = Etcd::start();
    let reader = Reader::new(&postgres, Some(etcd.url()));
    for page in ["README.md", "docs/lead/etcd.md", "docs/tutorial.md", "docs/lead/leases.md"] {
        reader.follow(page);
    }
    let value = |database: &str, query: &str| postgres.sql_in(database, query)[0][0].clone().unwrap();
    for database in ["app", "cron"] {
        assert_eq!(value(database, "SELECT run_by FROM ticks"), "node-b", "{database}");
    }
    let picture = fs::read_to_string(reader.folder.join("timeline.svg")).unwrap();
    for text in [">C</text>", "LF001: UPDATE, ticks, token 1: the highest is 2", "LF002: UPDATE, ticks, no token"] {
        assert!(picture.contains(text), "{text} in {picture}");
    }
    let leases = "SELECT string_agg(election || ' ' || token || ' ' || released, ', ' ORDER BY token) FROM fencegate_state.lease";
    assert_eq!(value("leases", leases), "cron/scheduler 1 true, cron/nightly 2 false, cron/reports 3 true");
    assert_eq!(value("leases", "SELECT count(*) FROM reports"), "1");
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages =
        ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"].map(|name| root.join(name)).to_vec();
    pages.extend(["", "python/", "typescript/", "go/"].map(|client| root.join(format!("clients/{client}README.md"))));
    for folder in ["docs", "examples"] {
        add_files(&root.join(folder), "md", &mut pages);
    }
    assert!(pages.len() > 50, "{}", pages.len());
    let mut broken = Vec::new();
    for page in &pages {
        let text = fs::read_to_string(page).unwrap();
        let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for link in links.filter(|link| !link.contains("://")) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            let found = target.exists() && (anchor.is_empty() || anchors(&target).contains(anchor));
            if !found {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// `docs/SUMMARY.md` is the table of contents of the site.
#[test]
fn the_summary_lists_every_page_once_in_order() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let summary = fs::read_to_string(root.join("SUMMARY.md")).unwrap();
    let links = summary.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let listed: Vec<&str> = links.filter(|link| !link.starts_with("../")).collect();
    let mut pages = Vec::new();
    add_files(&root, "md", &mut pages);
    let pages = pages.iter().map(|page| page.strip_prefix(&root).unwrap().to_str().unwrap().to_owned());
    let mut pages: Vec<String> = pages.filter(|page| page != "SUMMARY.md").collect();
    pages.sort();
    let mut sorted = listed.clone();
    sorted.sort();
    assert_eq!(sorted, pages);

    // Pages outside the folders belong to no part.
    let mut parts: Vec<&str> = listed.iter().map(|link| link.split_once('/').map_or("", |(part, _)| part)).collect();
    parts.dedup();
    assert_eq!(parts, ["", "use", "lead", "fence", "run", "reference", "trust", "internals"]);
}

#[test]
fn the_index_lists_every_decision_with_its_title() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/internals/decisions");
    let mut pages = Vec::new();
    add_files(&folder, "md", &mut pages);
    let index = fs::read_to_string(folder.join("README.md")).unwrap();
    let entry = |page: &PathBuf| {
        let text = fs::read_to_string(page).unwrap();
        let title = text.lines().next().unwrap().trim_start_matches("# ").to_owned();
        format!("- [{title}]({})\n", page.file_name().unwrap().display())
    };
    let decisions = pages.iter().filter(|page| !page.ends_with("README.md"));
    let missing: Vec<String> = decisions.map(entry).filter(|entry| !index.contains(entry)).collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

/// In the pages' code, a name with `::` is a test or a module of tests. The page on verification must list all mutants,
/// variants of the model and preconditions of the proof.
#[test]
fn every_named_test_exists_and_every_mistake_is_listed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = Vec::new();
    for folder in ["src", "crates", "tests"] {
        add_files(&root.join(folder), "rs", &mut sources);
    }
    let sources: Vec<(String, BTreeSet<String>)> = sources.iter().map(|path| (modules(path), words(path))).collect();
    let exists = |name: &str| {
        let (within, last) = name.rsplit_once("::").unwrap();
        let is_module_of = |modules: &str, name: &str| modules.contains(&format!("/{name}/"));
        sources.iter().any(|(modules, words)| {
            within.split("::").all(|name| is_module_of(modules, name))
                && (words.contains(last) || is_module_of(modules, last))
        })
    };
    let mut pages = vec![root.join("docs/internals/attacks.md"), root.join("docs/internals/verification.md")];
    add_files(&root.join("docs/trust"), "md", &mut pages);
    let mut named = BTreeSet::new();
    for page in &pages {
        let text = fs::read_to_string(page).unwrap();
        let is_name =
            |it: &&str| it.contains("::") && it.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b':'));
        named.extend(text.split('`').skip(1).step_by(2).filter(is_name).map(str::to_owned));
    }
    assert!(named.len() > 100, "{}", named.len());
    let missing: Vec<_> = named.iter().filter(|name| !exists(name)).collect();
    assert!(missing.is_empty(), "{missing:#?}");

    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    let between = |text: &str, from: &str, to: &str| {
        text.split_once(from).and_then(|(_, rest)| rest.split_once(to)).unwrap().0.to_owned()
    };
    let mut patches = Vec::new();
    add_files(&root.join("tests/mutants"), "patch", &mut patches);
    let mut mistakes: Vec<String> =
        patches.iter().map(|it| it.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    let variants = between(&read("tests/model/scenario.rs"), "Right,", "}");
    mistakes.extend(variants.lines().filter_map(|it| it.trim().strip_suffix(',')).map(str::to_owned));
    let broken = between(&read("proof/protocol.py"), "BROKEN = ", "TAKEOVER = ");
    mistakes.extend(broken.split("\n    (\"").skip(1).filter_map(|it| it.split('"').next()).map(str::to_owned));
    assert!(mistakes.len() > 100, "{}", mistakes.len());
    let page = read("docs/internals/verification.md");
    let unlisted: Vec<_> = mistakes.iter().filter(|it| !page.contains(&format!("`{it}`"))).collect();
    assert!(unlisted.is_empty(), "{unlisted:#?}");
}

/// The picture shows the first row of the first table. The median precedes the range.
#[test]
fn the_picture_of_the_performance_has_the_figures_of_its_table() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    let (page, picture) = (read("docs/reference/performance.md"), read("docs/performance.svg"));
    let row = page.lines().find(|line| line.starts_with("| prepared, 8 clients |")).unwrap();
    let medians: Vec<&str> = row.split('|').skip(2).filter_map(|cell| cell.trim().split(' ').next()).collect();
    let medians: Vec<&str> = medians.into_iter().filter(|it| !it.is_empty()).collect();
    assert_eq!(medians.len(), 5, "{row}");
    for page in [&page, &read("README.md")] {
        let text = page.split("![Transactions per second: ").nth(1).unwrap().split(']').next().unwrap();
        let missing = |it: &&&str| !picture.contains(&format!(">{it}</text>")) || !text.contains(**it);
        assert_eq!(medians.iter().find(missing), None, "{text}");
    }
}

/// The path of a source file as modules: `/tests/behaviour/fence/late/`.
fn modules(path: &Path) -> String {
    let path = path.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap().with_extension("");
    format!("/{}/", path.display())
}

fn words(path: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(path).unwrap();
    text.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_owned).collect()
}

fn add_files(folder: &Path, extension: &str, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            add_files(&path, extension, files);
        } else if path.extension().is_some_and(|it| it == extension) {
            files.push(path);
        }
    }
}

/// The anchors of a page: those that GitHub derives from headings, and `<a id="…">`.
fn anchors(page: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(page).unwrap();
    let ids = text.split("<a id=\"").skip(1).filter_map(|rest| rest.split('"').next()).map(str::to_owned);
    // Prose outside of code blocks, in which `#` begins a comment.
    let prose = text.split("```").step_by(2).flat_map(str::lines);
    let headings =
        prose.filter_map(|line| line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#')));
    let slug = |heading: &str| {
        let kept = heading.trim().to_lowercase().replace(' ', "-");
        kept.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect()
    };
    headings.map(slug).chain(ids).collect()
}
