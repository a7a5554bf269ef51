//! `fencegate policy explain`.

use super::{POLICY, SCHEMA};
use crate::support::guardian::Folder;
use crate::support::proxy::fencegate;
use crate::support::{Options, Postgres};
use std::process::Output;

fn explain(postgres: &Postgres, role: &str, policy: &str) -> Output {
    policy_command(postgres, role, policy, "explain")
}

fn policy_command(postgres: &Postgres, role: &str, policy: &str, command: &str) -> Output {
    let folder = Folder::new("explain");
    std::fs::write(folder.join("policy.yaml"), policy).unwrap();
    let url = format!("postgres://{role}@127.0.0.1:{}/postgres", postgres.port());
    fencegate().args(["policy", command, ".", "--database", &url]).current_dir(folder.path()).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Lines after the header, with ` | ` between columns.
fn lines(output: &Output) -> Vec<String> {
    let squeezed =
        |line: &str| line.split("  ").map(str::trim).filter(|it| !it.is_empty()).collect::<Vec<_>>().join(" | ");
    text(&output.stdout).lines().skip(1).map(squeezed).collect()
}

/// Without `fencegate init`, and with a role that may read no table.
#[test]
fn every_relation_that_counts_is_shown_with_its_path() {
    let postgres = Postgres::start(Options::default());
    postgres.sql(&format!("{SCHEMA} CREATE ROLE reader LOGIN"));
    let output = explain(&postgres, "reader", POLICY);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
    let expected = "
jobs | public.jobs | partitioned table | insert, update, delete, truncate, ddl | named in the policy
jobs | public.jobs_low | partition | insert, update, delete, truncate, ddl | partition of public.jobs
jobs | public.open_jobs | view | insert, update, delete | view on public.jobs
jobs | public.owner | table | delete, truncate cascade | foreign key jobs_owner_fkey of public.jobs on delete cascade
jobs | public.region | table | update, delete, truncate cascade | foreign key jobs_region_fkey of public.jobs on delete set default on update cascade
jobs | public.jobs_lowest | partition | insert, update, delete, truncate, ddl | partition of public.jobs_low, partition of public.jobs
jobs | public.my_jobs | view | insert, update, delete | view on public.open_jobs, view on public.jobs
jobs | public.lowest | view | insert, update, delete | view on public.jobs_lowest, partition of public.jobs_low, partition of public.jobs
jobs | public.owner | table | drop cascade | needed by public.jobs
jobs | public.region | table | drop cascade | needed by public.jobs
low | public.low_ticks | partition | insert, update, delete, truncate, ddl | named in the policy
low | public.ticks | partitioned table | insert, update, delete, truncate, ddl | parent of public.low_ticks
items | public.items | table | insert, update, delete, truncate, ddl | named in the policy
items | public.inbox | table | insert | rule deliver on public.items
items | public.special_items | table | insert, update, delete, truncate, ddl | inherits from public.items
items | public.things | table | update, delete, truncate, ddl | parent of public.items
items | public.outbox | view | insert | rule pass on public.inbox, rule deliver on public.items";
    assert_eq!(lines(&output), expected.lines().skip(1).collect::<Vec<_>>());
}

#[test]
fn a_missing_relation_is_unresolved_and_an_error() {
    let postgres = Postgres::start(Options::default());
    postgres.sql("CREATE TABLE \"Odd Name\" (id int); CREATE FUNCTION tick() RETURNS int LANGUAGE sql AS 'SELECT 1'");
    let policy = "version: 1\nresources:\n  - name: jobs\n    tables: ['public.\"Odd Name\"', {name: public.nothing, operations: [insert]}]\n    \
                  functions: [public.tick, public.tock]\n";
    let output = explain(&postgres, "postgres", policy);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), ""));
    let expected = "\
RESOURCE  RELATION           KIND        OPERATIONS                             PATH
jobs      public.\"Odd Name\"  table       insert, update, delete, truncate, ddl  named in the policy
jobs      public.nothing     unresolved  insert                                 named in the policy
jobs      public.tick        function    call                                   named in the policy
jobs      public.tock        unresolved  call                                   named in the policy
";
    assert_eq!(text(&output.stdout), expected);
}

#[test]
fn policies_for_other_databases_and_wrong_ones_are_errors() {
    let postgres = Postgres::start(Options::default());
    let output = explain(&postgres, "postgres", &format!("{POLICY}databases: [app]\n"));
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""));
    assert_eq!(text(&output.stderr), "fencegate: the policies do not fence anything in database postgres\n");
    let output = explain(&postgres, "postgres", "version: 1\nresourses: []\n");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).starts_with("./policy.yaml:2:1"), "{output:?}");
    let nobody = fencegate().args(["policy", "explain", "policies", "--database", "nonsense"]).output().unwrap();
    assert_eq!(nobody.status.code(), Some(2));
    assert!(text(&nobody.stderr).starts_with("fencegate: --database "), "{nobody:?}");
    let url = "postgres://nobody@127.0.0.1:1/x";
    let nobody = fencegate().args(["policy", "explain", "policies", "--database", url]).output().unwrap();
    assert_eq!(nobody.status.code(), Some(1));
    assert!(text(&nobody.stderr).starts_with("fencegate: cannot connect: "), "{nobody:?}");
}

/// The example in docs/fence/policies.md matches the program's output.
#[test]
fn the_documented_output_is_real() {
    let documented = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/fence/policies.md")).unwrap();
    let block = |after: &str| {
        let (_, rest) = documented.split_once(after).expect(after);
        rest.split_once("\n```").expect("the end of the block").0.to_owned()
    };
    let postgres = Postgres::start(Options::default());
    postgres.sql(&block("```sql\n"));
    let output =
        explain(&postgres, "postgres", "version: 1\nresources:\n  - name: scheduler\n    tables: [public.ticks]\n");
    let prompt = "$ fencegate policy explain policies --database postgres://app@127.0.0.1/app\n";
    assert_eq!(text(&output.stdout), block(prompt) + "\n");
}

#[test]
fn a_key_that_tells_no_rows_apart_is_unresolved_and_an_error() {
    let postgres = Postgres::start(Options::default());
    postgres.sql("CREATE TABLE a (k int); CREATE TABLE b (k numeric); CREATE TABLE c (n int)");
    let tables = ["a", "b", "c"].map(|table| format!("{{name: public.{table}, key: k}}")).join(", ");
    let output = explain(
        &postgres,
        "postgres",
        &format!("version: 1\nresources:\n  - {{name: 's/{{k}}', tables: [{tables}]}}\n"),
    );
    assert_eq!(output.status.code(), Some(1));
    let operations = "insert, update, delete, truncate, ddl";
    let expected = [
        format!("s/{{k}} | public.a | table | {operations} | named in the policy"),
        format!(
            "s/{{k}} | public.b | unresolved | {operations} | key column k: its type is not an integer, text, varchar or uuid"
        ),
        format!("s/{{k}} | public.c | unresolved | {operations} | key column k does not exist"),
    ];
    assert_eq!(lines(&output), expected);
}

#[test]
fn functions_whose_source_writes_are_reported() {
    let postgres = Postgres::start(Options::default());
    postgres.sql(
        "CREATE TABLE ticks (n int); CREATE TABLE ticks_2 (n int); CREATE ROLE reader LOGIN; \
         CREATE FUNCTION run() RETURNS void LANGUAGE plpgsql AS $$ BEGIN INSERT INTO ticks VALUES (1); END $$; \
         CREATE FUNCTION named() RETURNS void LANGUAGE sql AS 'DELETE FROM Public.Ticks'; \
         CREATE FUNCTION other() RETURNS void LANGUAGE sql AS 'DELETE FROM ticks_2'; \
         CREATE PROCEDURE body() LANGUAGE sql BEGIN ATOMIC DELETE FROM ticks; END; \
         CREATE FUNCTION \"Outer\"() RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM run (); END $$; \
         CREATE FUNCTION outermost() RETURNS void BEGIN ATOMIC SELECT \"Outer\"(); END; \
         CREATE FUNCTION runs() RETURNS void LANGUAGE sql AS 'SELECT other()'; \
         CREATE FUNCTION ticks() RETURNS int LANGUAGE c AS '$libdir/plpgsql', 'plpgsql_call_handler'",
    );
    let policy = "version: 1\nresources:\n  - {name: scheduler, tables: [public.ticks], functions: [public.named]}\n";
    let output = explain(&postgres, "reader", policy);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    let told: Vec<&str> =
        said.lines().filter_map(|line| line.strip_prefix("warning: function ")?.split(',').next()).collect();
    let expected = [
        "public.\"Outer\" calls a function that mentions public.ticks",
        "public.body mentions public.ticks",
        "public.outermost calls a function that mentions public.ticks",
        "public.run mentions public.ticks",
    ];
    assert_eq!(told, expected, "{said}");
    let line = "resource scheduler: list those that write in its policy: \
        functions: [public.named, 'public.\"Outer\"', public.body, public.outermost, public.run]; or install the guard";
    assert!(said.contains(line), "{said}");
    let advised =
        policy.replace("[public.named]", line.split(['[', ']']).nth(1).map(|it| format!("[{it}]")).unwrap().as_str());
    let output = explain(&postgres, "reader", &advised);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
}

#[test]
fn a_star_means_all_functions_that_begin_so() {
    let postgres = Postgres::start(Options::default());
    postgres.sql(
        "CREATE TABLE ticks (n int); \
         CREATE FUNCTION tick_1() RETURNS void LANGUAGE sql AS 'DELETE FROM ticks'; \
         CREATE FUNCTION tick_2() RETURNS void LANGUAGE sql AS 'DELETE FROM ticks'; \
         CREATE FUNCTION tock() RETURNS void BEGIN ATOMIC SELECT tick_2(); END",
    );
    let policy =
        "version: 1\nresources:\n  - {name: r, tables: [public.ticks], functions: [public.tick_*, public.gone_*]}\n";
    let output = explain(&postgres, "postgres", policy);
    let expected = [
        "r | public.ticks | table | insert, update, delete, truncate, ddl | named in the policy",
        "r | public.tick_1 | function | call | named in the policy as public.tick_*",
        "r | public.tick_2 | function | call | named in the policy as public.tick_*",
        "r | public.tock | function | call | calls public.tick_2",
        "r | public.gone_* | unresolved | call | named in the policy",
    ];
    assert_eq!(lines(&output)[..], expected);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).starts_with("warning: function public.tock calls a function that mentions public.ticks,")
    );
}

#[test]
fn policy_check_warns_of_functions_in_a_database() {
    let postgres = Postgres::start(Options::default());
    postgres.sql("CREATE TABLE ticks (n int); CREATE FUNCTION run() RETURNS void LANGUAGE sql AS 'DELETE FROM ticks'");
    let policy = "version: 1\nresources:\n  - {name: r, tables: [public.ticks, public.gone]}\n";
    let output = policy_command(&postgres, "postgres", policy, "check");
    let expected = "warning: ./policy.yaml:3:38: public.gone does not exist in postgres\n\
        warning: function public.run mentions public.ticks, but the proxy does not treat calls of it as writes\n\
        resource r: list those that write in its policy: functions: [public.run]; or install the guard\n";
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), expected));
    assert_eq!(text(&output.stdout), "policies: 1 resource, 2 tables, in 1 file\n");
}

#[test]
fn a_table_of_another_database_is_not_missed() {
    let postgres = Postgres::start(Options::default());
    postgres.sql("CREATE TABLE ticks (n int)");
    let policy = |database: &str| {
        format!(
            "version: 1\nresources:\n  - {{name: r, tables: [public.ticks, {{name: public.orders, database: {database}}}]}}\n"
        )
    };
    let output = explain(&postgres, "postgres", &policy("shop"));
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
    assert!(!text(&output.stdout).contains("orders"));
    assert_eq!(explain(&postgres, "postgres", &policy("Postgres")).status.code(), Some(1));
    // A table is fenced wherever it exists, regardless of the expected database.
    postgres.sql("CREATE TABLE orders (n int)");
    let output = explain(&postgres, "postgres", &policy("shop"));
    assert!(lines(&output).iter().any(|line| line.starts_with("r | public.orders | table | ")), "{output:?}");
}
