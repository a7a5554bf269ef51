//! README, the guide and the quickstarts are correct: a new user can follow them in order, and every link leads to a heading.
//! Tests run the commands as written, with the ports of temporary servers.

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
    for page in ["README.md", "docs/etcd.md", "docs/guide.md", "docs/leases.md"] {
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
    let mut pages = vec![root.join("README.md"), root.join("CONTRIBUTING.md"), root.join("CHANGELOG.md")];
    for folder in ["docs", "examples"] {
        add_pages(&root.join(folder), &mut pages);
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

fn add_pages(folder: &Path, pages: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            add_pages(&path, pages);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
}

/// The anchors of a page: those that GitHub derives from headings, and `<a id="…">`.
fn anchors(page: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(page).unwrap();
    let ids = text.split("<a id=\"").skip(1).filter_map(|rest| rest.split('"').next()).map(str::to_owned);
    // The parts outside of blocks of code, where `#` begins a comment.
    let prose = text.split("```").step_by(2).flat_map(str::lines);
    let headings =
        prose.filter_map(|line| line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#')));
    let slug = |heading: &str| {
        let kept = heading.trim().to_lowercase().replace(' ', "-");
        kept.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect()
    };
    headings.map(slug).chain(ids).collect()
}
