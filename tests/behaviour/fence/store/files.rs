//! Every server version accepts each statement in a file of SQL, and psql can run the file.

use crate::fence::server::World;
use crate::support::programs::{psql, run};
use crate::support::{Address, Release};
use fencegate_postgres::sql_file::Value::{self, Part, Text};
use fencegate_postgres::sql_file::fill;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Scripts, which a server runs unchanged.
const SCRIPTS: [&str; 5] =
    ["store/schema.sql", "store/leases.sql", "store/check.sql", "guard/guard.sql", "guard/notice.sql"];

/// A value for each parameter, unless a file needs another one.
const SAMPLES: &[(&str, Value)] = &[
    ("admissions", Text("fencegate_state.admission")),
    ("admissions_table", Part("fencegate_state.admission")),
    ("admitted", Part(":admitted_users")),
    ("after", Text("")),
    ("after_length", Part("0")),
    ("after_name", Text("shard/")),
    ("arguments", Part("'{}'::bytea[]")),
    ("awaited", Part(":control_awaits")),
    ("before", Text("shard/")),
    ("blocks", Part(":control_is_blocked")),
    ("class", Part("'pg_proc'::regclass")),
    ("command", Text("a")),
    ("commented", Text("guard")),
    ("content_column", Part("content")),
    ("control_pid", Part("0")),
    ("control_start", Text("1.5")),
    ("counts", Part("true")),
    ("counts_me", Part("me.relpersistence <> 't'")),
    ("counts_t", Part("t.relpersistence <> 't'")),
    ("counts_v", Part("true")),
    ("databases", Part("'app'")),
    ("deletes", Part("true")),
    ("described", Part("10")),
    ("elections", Part("'cron', 'it''s'")),
    ("ends", Part("false")),
    ("event_triggers", Part("'a'")),
    ("events", Part("pg_relation_is_updatable(v.oid, true)")),
    ("exact_names", Part("'{f}'::name[]")),
    ("exact_schemas", Part("'{public}'::name[]")),
    ("fenced", Text("{}")),
    ("fingerprints", Part("'a'")),
    ("force", Part("false")),
    ("function", Text("unnest")),
    ("function_list", Text("{token}")),
    ("function_names", Part("'guard'")),
    ("generation", Part("1")),
    ("grace", Part("1000")),
    ("guard_columns", Part(":sealed_content")),
    ("guard_functions", Part("'guard'")),
    ("inserts", Part("true")),
    ("is_named", Part(":is_one_of")),
    ("keep_token", Part("false")),
    ("kept_functions", Text("{}")),
    ("kept_relations", Text("{}")),
    ("key", Part(":init_key")),
    ("keys", Part("'{id}'::name[]")),
    ("known", Part("('jobs', 'a')")),
    ("known_token", Part("7")),
    ("length", Part("7")),
    ("limit", Part("10")),
    ("loaded", Part("12")),
    ("lock_name", Text("fencegate:jobs")),
    ("lock_timeout", Text("50ms")),
    ("locks", Part("true")),
    ("may_admit", Part(":may_admit_to")),
    ("may_write", Part("true")),
    ("modes", Part(":write_locks")),
    ("most", Part("10")),
    ("most_keys", Part("10")),
    ("most_similar", Part("10")),
    ("most_suggested", Part("10")),
    ("name", Part("$1")),
    ("named_role", Part("current_user")),
    ("names", Part("'{ticks}'::name[]")),
    ("notice_columns", Part(":sealed_content")),
    ("notice_functions", Part("'notice_definition'")),
    ("object", Part("it.oid")),
    ("of_keys", Part(":is_called")),
    ("own_functions", Part("'token'")),
    ("own_relations", Part("'epoch'")),
    ("owner_role", Text("postgres")),
    ("payloads", Part("'{a}'::text[]")),
    ("permitted", Part("NOT EXISTS (SELECT :higher_admissions)")),
    ("pid", Part("0")),
    ("pids", Part("'{}'::integer[]")),
    ("plain", Part("'jobs'")),
    ("policy", Text("a")),
    ("prefix_schemas", Part("'{public}'::name[]")),
    ("prefixes", Part("'{do_}'::name[]")),
    ("processes", Part(", (0, 1.5::numeric)")),
    ("proxy", Text("it's one")),
    ("recorded", Part("")),
    ("relation_list", Text("{epoch}")),
    ("relation_names", Part("'public.ticks'")),
    ("resource", Text("jobs")),
    ("role", Text("operator")),
    ("role_name", Text("postgres")),
    ("schemas", Part("'{public}'::name[]")),
    ("seal_column", Part("seal")),
    ("signature", Text("fencegate.token()")),
    ("starts", Part("'{}'::numeric[]")),
    ("statement_timeout", Text("250ms")),
    ("stored", Part("''")),
    ("synchronous_commit", Part("off")),
    ("table_names", Part("'{ticks}'::name[]")),
    ("timeout", Part(":timeout_of_session")),
    ("token", Part("8")),
    ("types", Part("'text'")),
    ("updates", Part("true")),
    ("acting", Part(":acting_any")),
    ("writes", Part("true")),
];

/// Values for single files.
const OF_FILES: &[(&str, &[(&str, Value)])] = &[
    ("admit.sql", &told(["$5", "$6", "$7", "$8"])),
    ("report.sql", &told(["$4", "$5", "$6", "$7"])),
    ("admit_first.sql", &told(["p.pid", "p.backend_start", "p.system_identifier", "p.postmaster_start"])),
    ("admit_first.sql", &[("name", Part("f.resource"))]),
    ("admit_current.sql", &told(["$5", "$6", "$7", "$8"])),
    ("admit_current.sql", &[("name", Part("w.resource"))]),
    ("try_locks_shared.sql", &[("name", Part("n"))]),
    ("try_locks.sql", &[("name", Part("n"))]),
    ("guarded_write.sql", &[("key", Part(":resource_key"))]),
    ("end_process.sql", &[("backend_start", Text("1.5"))]),
    ("removals.sql", &[("class", Part("part.classid")), ("object", Part("part.objid"))]),
];

const fn told([pid, start, system, postmaster]: [&'static str; 4]) -> [(&'static str, Value<'static>); 4] {
    [
        ("pid", Part(pid)),
        ("backend_start", Part(start)),
        ("system_identifier", Part(system)),
        ("postmaster_start", Part(postmaster)),
    ]
}

#[tokio::test]
async fn each_statement_is_prepared() {
    prepare_all(Release::Installed).await;
}

#[tokio::test]
#[ignore = "needs what comes from the network: make soak"]
async fn each_statement_is_prepared_on_postgres_18() {
    prepare_all(Release::Eighteen).await;
}

async fn prepare_all(release: Release) {
    let world = World::new_on(release).await;
    let files = Files::read();
    let fragments = files.fragments();
    for path in &files.statements {
        let filled = fill(&text(path), &fragments, &values(path));
        let missing: Vec<_> = filled.mismatches.iter().filter(|it| it.starts_with("no value")).collect();
        assert!(missing.is_empty(), "{}: {missing:?}", path.display());
        for statement in statements(&filled.text) {
            let is_utility = ["PREPARE ", "SET "].iter().any(|it| statement.starts_with(it));
            let prepare = if is_utility { statement.to_owned() } else { format!("PREPARE it AS {statement}") };
            let prepared = world.root.batch_execute(&format!("{prepare}; DEALLOCATE ALL")).await;
            prepared.unwrap_or_else(|error| panic!("{}: {error:?}\n{statement}", path.display()));
        }
    }
}

/// The sample values change nothing and terminate no process.
#[tokio::test]
async fn psql_runs_each_file() {
    let world = World::new().await;
    let files = Files::read();
    let psql = psql(&Address::Unix(world.server.socket()), &world.database);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/psql.sh");
    for path in &files.statements {
        let mut command = Command::new(&script);
        command.env("PSQL", psql.get_program()).args(psql.get_args());
        command.envs(psql.get_envs().filter_map(|(name, value)| Some((name, value?))));
        for (name, value) in values(path).iter().rev() {
            let (Text(value) | Part(value)) = value else { unreachable!("{name}") };
            command.args(["-v", &format!("{name}={value}")]);
        }
        run(command.arg("-f").arg(path));
    }
}

#[test]
fn each_file_begins_with_the_meaning_of_its_rows() {
    let files = Files::read();
    assert!(files.statements.len() > 50 && files.fragments.len() > 40, "the files are elsewhere");
    for path in files.statements.iter().chain(&files.fragments) {
        let text = text(path);
        let first = text.lines().next().unwrap_or_default();
        assert!(first.starts_with("-- ") && first.contains(' '), "{}", path.display());
        assert!(!text.contains("/*") && !text.contains("$$"), "{}: the parameters are not found there", path.display());
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{}: a line is long", path.display());
    }
}

/// Includes values used by calls in the program. Debug builds check the other values at each call.
#[test]
fn each_sample_is_a_parameter() {
    let files = Files::read();
    let all: String = files.statements.iter().chain(&files.fragments).map(|path| text(path)).collect();
    for (name, _) in SAMPLES {
        let is_used = [format!(":{name}"), format!(":'{name}'")].iter().any(|it| all.contains(it.as_str()));
        assert!(is_used, "{name}");
    }
}

/// The files with complete statements, and the fragments.
struct Files {
    statements: Vec<PathBuf>,
    fragments: Vec<PathBuf>,
}

impl Files {
    fn read() -> Files {
        let mut files = Files { statements: Vec::new(), fragments: Vec::new() };
        for folder in ["catalog", "fence"] {
            files.add(&Path::new(env!("CARGO_MANIFEST_DIR")).join("crates").join(folder).join("src"));
        }
        files
    }

    fn add(&mut self, folder: &Path) {
        let entries = fs::read_dir(folder).unwrap();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        for path in paths {
            if path.is_dir() {
                self.add(&path);
            } else if path.extension().is_some_and(|it| it == "sql") && !SCRIPTS.iter().any(|it| path.ends_with(it)) {
                let is_fragment = folder.ends_with("fragments");
                if is_fragment { self.fragments.push(path) } else { self.statements.push(path) }
            }
        }
    }

    /// Names and texts of the fragments.
    fn fragments(&self) -> Vec<(&'static str, &'static str)> {
        let fragment = |path: &PathBuf| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (&*name.leak(), &*text(path).leak())
        };
        self.fragments.iter().map(fragment).collect()
    }
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

fn values(path: &Path) -> Vec<(&'static str, Value<'static>)> {
    let of_file = OF_FILES.iter().filter(|(file, _)| path.ends_with(file)).flat_map(|(_, values)| *values);
    of_file.chain(SAMPLES).copied().collect()
}

/// The statements of a text without comments.
fn statements(text: &str) -> Vec<&str> {
    let mut is_quoted = false;
    let split = text.split(|it: char| {
        is_quoted ^= it == '\'';
        it == ';' && !is_quoted
    });
    split.map(str::trim).filter(|it| !it.is_empty()).collect()
}
