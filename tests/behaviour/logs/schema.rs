//! Events of real programs match the schema in docs/reference/events.md, and the timeline draws them.

use crate::logs::line::{SCHEMA, start};
use crate::support::fenced::{code, ok};
use crate::support::guardian::{Folder, Program};
use crate::support::proxy::{BINARY, fencegate};
use crate::support::wait::wait_for;
use crate::support::{DEADLINE, Etcd, Wire, wait_until};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

const PAGE: &str = include_str!("../../../docs/reference/events.md");
const POLICIES: &str = "version: 1
resources:
  - {name: jobs, election: /logs, tables: [public.jobs]}
";

type Event = Map<String, Value>;

fn events(log: &str) -> Vec<Event> {
    let whole = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let objects = whole.map(|line| serde_json::from_str::<Event>(line).unwrap_or_else(|why| panic!("{line}: {why}")));
    objects.filter(|line| line.contains_key("event")).collect()
}

fn first(log: impl Fn() -> String, event: &str) -> Event {
    wait_for(format!("the log has {event}"), DEADLINE, || events(&log()).into_iter().find(|it| it["event"] == event))
}

/// The cells of the table between these comments on the page.
fn table(name: &str) -> Vec<Vec<String>> {
    let text = PAGE.split_once(&format!("<!-- {name} -->\n")).unwrap().1;
    let text = text.split_once(&format!("<!-- end of {name} -->")).unwrap().0;
    let cells = |row: &str| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    text.lines().skip(2).map(cells).collect()
}

/// Texts in backticks. For `name=value`, only the name.
fn names(cell: &str) -> BTreeSet<String> {
    let quoted = cell.split('`').skip(1).step_by(2);
    quoted.map(|name| name.split('=').next().unwrap().to_owned()).collect()
}

/// A candidate whose log the test reads.
struct Node {
    folder: Folder,
    program: Program,
}

impl Node {
    fn start(name: &str, etcd: &Etcd) -> Self {
        let folder = Folder::new("schema");
        let (url, variables) = (etcd.url(), ["env", "RUST_LOG=fencegate=debug", BINARY]);
        let lead = ["lead", "--log-format", "json", "--etcd", &url, "--election", "/logs", "--ttl", "9", "--id", name];
        let command = [&variables[..], &lead[..], &["--", "sleep", "1000"]].concat();
        let program = Program::start(&command, &folder.join("log"), "KILL");
        Node { folder, program }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    fn token(&self) -> i64 {
        first(|| self.log(), "lease_acquired")["token"].as_i64().unwrap()
    }
}

/// A takeover: B leads after A. One session of A is cut off, and the others are rejected. Returns the logs.
fn takeover() -> String {
    let etcd = Etcd::start();
    let mut fenced = start(SCHEMA, POLICIES, &["--etcd", &etcd.url()]);
    let a = Node::start("A", &etcd);
    let (mut writer, mut late) = (fenced.holder(a.token()), fenced.holder(a.token()));
    let mut b = Node::start("B", &etcd);
    first(|| b.log(), "lease_awaited");
    first(|| a.log(), "lease_renewed");
    ok(&mut writer, "BEGIN; INSERT INTO jobs VALUES (1)");
    ok(&mut late, "INSERT INTO jobs VALUES (2)");
    let own =
        etcd.etcdctl(&["get", "--prefix", "--keys-only", "--sort-by=CREATE", "--limit=1", "/logs"]).output().unwrap();
    etcd.delete(String::from_utf8(own.stdout).unwrap().trim());
    first(|| a.log(), "lease_lost");
    ok(&mut fenced.holder(b.token()), "INSERT INTO jobs VALUES (3)");
    assert_eq!(code(&mut writer, "INSERT INTO jobs VALUES (4)"), "LF001");
    assert_eq!(code(&mut late, "INSERT INTO jobs VALUES (5)"), "LF001");
    assert_eq!(code(&mut fenced.login(), "INSERT INTO jobs VALUES (6)"), "LF002");
    ok(
        &mut Wire::login(&fenced.proxy.address(), "postgres", "fencegate"),
        &format!("FENCE RESET jobs TO {} FORCE", b.token()),
    );
    drop((writer, late));
    wait_until("all is logged", DEADLINE, || {
        let told: BTreeSet<String> =
            events(&fenced.proxy.log()).iter().map(|it| it["event"].as_str().unwrap().to_owned()).collect();
        ["session_cut_off", "session_drained", "session_ended", "fence_reset"].iter().all(|it| told.contains(*it))
    });
    b.program.signal("TERM");
    wait_until("B has given up", DEADLINE, || b.log().contains("lease_lost"));
    fenced.proxy.terminate();
    fenced.proxy.log() + &a.log() + &b.log()
}

#[test]
fn events_are_as_documented_and_drawn() {
    let logs = takeover();
    let types: BTreeMap<String, String> =
        table("fields").iter().flat_map(|row| names(&row[0]).into_iter().map(|name| (name, row[1].clone()))).collect();
    let rows = table("events");
    let everywhere = ["timestamp", "level", "event", "target"].map(str::to_owned);
    for row in &rows {
        let event = names(&row[0]).into_iter().next().unwrap();
        let (always, also) = (names(&row[2]), names(&row[3]));
        let told: Vec<Event> = events(&logs).into_iter().filter(|it| it["event"] == *event).collect();
        assert!(!told.is_empty(), "no {event} in {logs}");
        for told in told {
            let level = told["level"].as_str().unwrap().to_lowercase();
            assert!(row[1].contains(&level), "{told:?}");
            let fields: BTreeSet<String> = told.keys().filter(|it| !everywhere.contains(it)).cloned().collect();
            assert!(fields.is_superset(&always), "{event} lacks {:?}", always.difference(&fields));
            let unknown: Vec<&String> = fields.difference(&always).filter(|it| !also.contains(*it)).collect();
            assert!(unknown.is_empty(), "{event} has {unknown:?}");
            for (name, kind) in &types {
                let Some(value) = told.get(name) else { continue };
                assert!(if kind == "integer" { value.is_i64() } else { value.is_string() }, "{name} in {told:?}");
            }
        }
    }
    for event in events(&logs) {
        let name = event["event"].as_str().unwrap();
        assert!(PAGE.contains(&format!("`{name}`")), "{name} is missing from the tables");
    }
    assert_drawn(&logs);
}

/// The picture shows both nodes, their leaderships and the rejections.
fn assert_drawn(logs: &str) {
    let folder = Folder::new("drawn");
    let file = folder.join("log");
    fs::write(&file, format!("LOG:  no event\n{logs}")).unwrap();
    let picture = draw(&file);
    let expected = [">A</text>", ">B</text>", "; lost: ", "INSERT, jobs, token ", ">cut off: "];
    for text in
        expected.into_iter().chain(["<title>LF002: INSERT, jobs, no token</title>", "jobs: the highest token is "])
    {
        assert!(picture.contains(text), "{text} in {picture}");
    }
}

fn draw(file: &Path) -> String {
    let output = fencegate().arg("timeline").arg(file).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_documented_pictures_show_their_events() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    for name in ["timeline", "guide"] {
        let picture = fs::read_to_string(docs.join(name).with_extension("svg")).unwrap();
        assert_eq!(draw(&docs.join(name).with_extension("jsonl")), picture, "{name}");
    }
}

#[test]
fn a_log_without_events_draws_no_picture() {
    let folder = Folder::new("drawn");
    let file = folder.join("log");
    for log in [&b"LOG:  ready\n"[..], b"", &[0xff; 100_000], b"{\"event\":\"lease_lost\"}"] {
        fs::write(&file, log).unwrap();
        let output = fencegate().arg("timeline").arg(&file).output().unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
        assert!(String::from_utf8(output.stderr).unwrap().contains("--log-format json"));
    }
}
