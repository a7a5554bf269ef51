//! Policies with table names that no database has, usually misspelled. They must not remove a fence.

use crate::metrics::page::get;
use crate::metrics::world::http_address;
use crate::support::fenced::{Fenced, code, init, ok};
use crate::support::guardian::Folder;
use crate::support::postgres::SUPERUSER;
use crate::support::proxy::fencegate;
use crate::support::{DEADLINE, Options, Postgres, Proxy, ProxyOptions, Wire, wait_until};
use std::net::SocketAddr;

const SCHEMA: &str = "CREATE TABLE ticks (n int); CREATE TABLE jobs (n int); CREATE TABLE \"Odd Name\" (n int)";
const TICKS: &str = "version: 1\nresources:\n  - name: scheduler\n    tables: [public.ticks]\n";

fn start(policies: &str) -> Fenced {
    let proxy = ProxyOptions::default().policies(policies).arguments(&["--http", "127.0.0.1:0"]);
    Fenced::start_with(Options::default(), SCHEMA, &proxy)
}

fn console(proxy: &Proxy) -> Wire {
    Wire::login(&proxy.address(), SUPERUSER, "fencegate")
}

fn address(world: &Fenced) -> SocketAddr {
    http_address(|| world.proxy.log())
}

/// Reloads with these policies. Returns the error message, or an empty text on success.
fn reload(world: &Fenced, policies: &str) -> String {
    world.proxy.write_policies(policies);
    console(&world.proxy).rows("RELOAD").map_or_else(|error| error.message().to_owned(), |_| String::new())
}

/// Number of tables in a state.
fn tables(world: &Fenced, state: &str) -> Option<u32> {
    let name = format!("fencegate_policy_tables{{state=\"{state}\"}} ");
    get(address(world), "/metrics").body.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok())
}

#[test]
fn a_reload_with_a_wrong_letter_is_refused_and_the_fence_stays() {
    let mut world = start(TICKS);
    ok(&mut world.holder(7), "INSERT INTO ticks VALUES (1)");
    let refused = reload(&world, &TICKS.replace("ticks", "tikcs"));
    assert!(
        refused.contains(":4:14: public.tikcs does not exist in postgres; did you mean public.ticks?"),
        "{refused}"
    );
    assert!(refused.contains("remove the table or the resource from the policies"), "{refused}");
    assert_eq!(code(&mut world.login(), "INSERT INTO ticks VALUES (1)"), "LF002");
    // The same with SIGHUP.
    world.proxy.sighup();
    world.proxy.wait_for_log("reload_failed", DEADLINE);
    wait_until("it is counted", DEADLINE, || {
        get(address(&world), "/metrics").body.contains("\nfencegate_reload_successful 0\n")
    });
    for wrong in ["publik.ticks", "public.Ticks_", "public.\\\"Ticks\\\""] {
        let refused = reload(&world, &TICKS.replace("public.ticks", &format!("\"{wrong}\"")));
        assert!(refused.contains("did you mean public.ticks?"), "{wrong}: {refused}");
    }
    // Removing a resource on purpose is permitted.
    assert_eq!(reload(&world, "version: 1\nresources: []\n"), "");
    ok(&mut world.login(), "INSERT INTO ticks VALUES (1)");
}

#[test]
fn other_reloads_that_would_leave_a_resource_without_a_table() {
    let world = start(&TICKS.replace("public.ticks", "public.ticks, public.jobs, 'public.\"Odd Name\"'"));
    ok(&mut world.holder(7), "INSERT INTO ticks VALUES (1)");
    // Permitted, because other tables of the resource exist.
    assert_eq!(reload(&world, &TICKS.replace("public.ticks", "public.ticks, public.jbos")), "");
    assert_eq!(reload(&world, &TICKS.replace("public.ticks", "public.ticks, 'public.\"Odd Name\"'")), "");
    let refused = reload(&world, &TICKS.replace("public.ticks", "'public.\"odd Name\"'"));
    assert!(
        refused.contains("public.\"odd Name\" does not exist in postgres; did you mean public.\"Odd Name\"?"),
        "{refused}"
    );
    let refused = reload(&world, &format!("{TICKS}databases: [postgre]\n"));
    assert!(refused.contains("database postgre does not exist; did you mean postgres?"), "{refused}");
    assert_eq!(reload(&world, &format!("{TICKS}databases: [postgres]\n")), "");
    // A renamed table, with a wrong new name.
    ok(&mut world.holder(8), "ALTER TABLE ticks RENAME TO ticks_2");
    let refused = reload(&world, &TICKS.replace("ticks", "ticks_3"));
    assert!(refused.contains("public.ticks_3 does not exist in postgres; did you mean public.ticks_2?"), "{refused}");
    assert_eq!(reload(&world, &TICKS.replace("ticks", "ticks_2")), "");
}

#[test]
fn while_a_database_cannot_be_read_no_table_is_taken_away() {
    let mut world = start(&TICKS.replace("public.ticks", "public.ticks, public.jobs"));
    world.proxy.wait_for_log("listening", DEADLINE);
    world.postgres.stop();
    world.proxy.write_policies(TICKS);
    world.proxy.sighup();
    world.proxy.wait_for_log("cannot determine which tables exist", DEADLINE);
    // Policies that remove no table need no database.
    world.proxy.write_policies(&TICKS.replace("public.ticks", "public.ticks, public.jobs, public.more"));
    world.proxy.sighup();
    world.proxy.wait_for_log("policies_loaded", DEADLINE);
    world.postgres.start_again();
}

/// The fence may be loaded before the table is created.
#[test]
fn a_table_that_never_existed_is_a_visible_warning() {
    let later = TICKS.replace("ticks", "latr");
    let world = start(&later);
    let page = |path: &str| get(address(&world), path);
    wait_until("it is counted", DEADLINE, || tables(&world, "unresolved") == Some(1));
    assert_eq!((tables(&world, "resolved"), tables(&world, "unknown")), (Some(0), Some(0)));
    wait_until("it is ready", DEADLINE, || page("/readyz").status == 200);
    assert_eq!(page("/readyz").body, "ok\nunresolved: resource scheduler: public.latr does not exist in postgres\n");
    let attention = "<li>unresolved: resource scheduler: public.latr does not exist in postgres</li>";
    wait_until("the status page shows it", DEADLINE, || page("/").body.contains(attention));
    world.proxy.wait_for_log("policy_table_unresolved", DEADLINE);
    // Reloads that do not cause the problem are permitted.
    assert_eq!(reload(&world, &later), "");
    assert_eq!(reload(&world, &format!("{later}  - name: more\n    tables: [public.more]\n")), "");
    wait_until("both are counted", DEADLINE, || tables(&world, "unresolved") == Some(2));
    ok(&mut world.login(), "CREATE TABLE more (n int)");
    let _open = world.login();
    wait_until("one is there", DEADLINE, || {
        tables(&world, "unresolved") == Some(1) && tables(&world, "resolved") == Some(1)
    });
    // In a database without sessions, the proxy searches periodically.
    drop(_open);
    world.postgres.sql("CREATE TABLE latr (n int)");
    wait_until("both are there", DEADLINE, || tables(&world, "resolved") == Some(2));
    assert_eq!(page("/readyz").body, "ok\n");
}

#[test]
fn missing_tables_are_searched_in_every_database_of_the_policies() {
    let world = start("version: 1\nresources: []\n");
    world.postgres.sql("CREATE DATABASE shop");
    world.postgres.sql_in("shop", "CREATE TABLE orders (n int)");
    init(&world.postgres, "shop");
    let both = TICKS.replace("public.ticks", "public.ticks, {name: public.orders, database: shop}");
    assert_eq!(reload(&world, &both), "");
    wait_until("both exist", DEADLINE, || tables(&world, "resolved") == Some(2));
    let refused = reload(&world, &both.replace("name: public.orders", "name: public.ordres"));
    assert!(refused.contains("public.ordres does not exist in shop; did you mean public.orders?"), "{refused}");
    assert_eq!(reload(&world, TICKS), "");
    // Policies without `databases` fence every database that has the table.
    world.postgres.sql_in("shop", "CREATE TABLE ticks (n int)");
    assert_eq!(reload(&world, &format!("{TICKS}exempt_roles: [nobody]\n")), "");
    world.proxy.wait_for_log("policies_fence_several_databases databases=\"postgres, shop\"", DEADLINE);
}

/// The exit code and the whole output.
fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let output = fencegate().args(arguments).output().unwrap();
    let said = [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned()).concat();
    (output.status.code(), said)
}

struct Checked {
    folder: Folder,
    postgres: Postgres,
}

impl Checked {
    /// A database `app` with `ticks`, and a control role without a database in its URL, as in README.
    fn start() -> Self {
        let postgres = Postgres::start(Options::default());
        postgres.sql("CREATE DATABASE app");
        postgres.sql("CREATE ROLE fencegate LOGIN");
        postgres.sql_in("app", "CREATE TABLE ticks (n int)");
        Checked { folder: Folder::new("checked"), postgres }
    }

    fn policies(&self, policies: &str) -> String {
        std::fs::write(self.folder.join("policy.yaml"), policies).unwrap();
        self.folder.path().display().to_string()
    }

    fn check(&self, policies: &str, more: &[&str]) -> (Option<i32>, String) {
        let (policies, port) = (self.policies(policies), self.postgres.port());
        let (upstream, control) =
            (format!("postgres://127.0.0.1:{port}"), format!("postgres://fencegate@127.0.0.1:{port}/"));
        let all = ["proxy", "--check", "--upstream", &upstream, "--control", &control, "--policies", &policies];
        run(&[&all[..], more].concat())
    }

    fn policy_check(&self, policies: &str, database: &str) -> (Option<i32>, String) {
        let url = format!("postgres://postgres@127.0.0.1:{}/{database}", self.postgres.port());
        run(&["policy", "check", &self.policies(policies), "--database", &url])
    }
}

#[test]
fn a_check_looks_at_the_databases_with_the_schema_and_advises_a_command() {
    let world = Checked::start();
    let (code, said) = world.check(TICKS, &[]);
    let command = format!(
        "fencegate init --control postgres://postgres@127.0.0.1:{}/app --role fencegate",
        world.postgres.port()
    );
    assert_eq!(code, Some(1), "{said}");
    let line = said.lines().find(|line| line.starts_with("failed  control app: ")).expect(&said);
    assert!(line.ends_with(&command), "{said}");
    assert!(!said.contains("guard postgres"), "{said}");
    // The command runs as printed.
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    assert_eq!(run(&words).0, Some(0));
    let (code, said) = world.check(TICKS, &[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("ok      control app: reached, ready for fences"), "{said}");
    assert!(said.contains("ok      control postgres: reached\n"), "{said}");
    assert_eq!(world.check(&format!("{TICKS}databases: [app]\n"), &[]).0, Some(0));
    let (code, said) = world.check(&format!("{TICKS}databases: [ap]\n"), &[]);
    assert!(code == Some(1) && said.contains("failed  control ap: database ap does not exist"), "{said}");

    // The check cannot determine which tables exist in a database that the control role may not connect to.
    world.postgres.sql("REVOKE CONNECT ON DATABASE app FROM PUBLIC");
    let (code, said) = world.check(TICKS, &[]);
    let warning = "warning databases: the control role fencegate may not connect to app. Where the policies fence tables: GRANT CONNECT ON DATABASE … TO fencegate\n";
    assert!(code == Some(1) && said.contains(warning), "{said}");
    let (_, said) = world.check(&format!("{TICKS}databases: [app]\n"), &[]);
    assert!(
        said.contains("failed  control app: the control role fencegate lacks a privilege: GRANT CONNECT ON DATABASE"),
        "{said}"
    );
}

#[test]
fn a_check_fails_for_a_table_that_no_database_has() {
    let world = Checked::start();
    init(&world.postgres, "app");
    world.postgres.sql_in(
        "app",
        "ALTER SCHEMA fencegate OWNER TO fencegate; GRANT USAGE ON SCHEMA fencegate_state TO fencegate; \
         GRANT ALL ON ALL TABLES IN SCHEMA fencegate_state TO fencegate; \
         GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA fencegate TO fencegate",
    );
    world.postgres.sql("GRANT pg_read_all_stats, pg_signal_backend TO fencegate");
    let wrong = TICKS.replace("ticks", "tikcs") + "    functions: [public.run_tick]\n";
    let told = "table public.tikcs: public.tikcs does not exist in app; did you mean public.ticks?";
    let function = "function public.run_tick: public.run_tick does not exist in";
    let (code, said) = world.check(&wrong, &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&format!("failed  {told}")) && said.contains(&format!("failed  {function}")), "{said}");
    let (code, said) = world.check(&wrong, &["--allow-unresolved"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(&format!("warning {told}")), "{said}");
    // Several databases have the table.
    world.postgres.sql("CREATE TABLE ticks (n int)");
    let (_, said) = world.check(TICKS, &[]);
    assert!(
        said.contains("warning databases: without `databases`, the policies fence tables in app, postgres: "),
        "{said}"
    );
}

#[test]
fn policy_check_looks_for_tables_in_a_database() {
    let world = Checked::start();
    assert_eq!(world.policy_check(TICKS, "app"), (Some(0), "policies: 1 resource, 1 table, in 1 file\n".to_owned()));
    let (code, said) = world.policy_check(&TICKS.replace("ticks", "tikcs"), "app");
    assert_eq!(code, Some(1), "{said}");
    let told = "policy.yaml:4:14: public.tikcs does not exist in app; did you mean public.ticks?\n";
    assert!(said.lines().any(|line| line.starts_with("warning: ")) && said.contains(told), "{said}");
    // The resource has another table, or is not expected in this database.
    let (code, said) = world.policy_check(&TICKS.replace("public.ticks", "public.ticks, public.later"), "app");
    assert!(code == Some(0) && said.contains("public.later does not exist in app\n"), "{said}");
    let elsewhere = TICKS.replace("public.ticks", "{name: public.orders, database: shop}");
    assert_eq!(world.policy_check(&elsewhere, "app").0, Some(0));
    world.postgres.sql("CREATE TABLE ticks (n int)");
    let (_, said) = world.policy_check(TICKS, "app");
    assert!(said.contains("warning: without `databases`, the policies fence tables in app, postgres"), "{said}");
    let (_, said) = world.policy_check(&format!("{TICKS}databases: [app]\n"), "app");
    assert!(!said.contains("warning"), "{said}");
}

fn install(world: &Fenced, policies: &str, more: &[&str]) -> (Option<i32>, String) {
    let folder = Folder::new("install");
    std::fs::write(folder.join("policy.yaml"), policies).unwrap();
    let (control, policies) = (world.postgres.control_url() + "postgres", folder.path().display().to_string());
    run(&[&["guard", "install", "--control", &control, "--policies", &policies], more].concat())
}

/// Tables with a guard.
fn guarded(world: &Fenced) -> String {
    world.postgres.value(
        "SELECT coalesce(string_agg(DISTINCT tgrelid::regclass::text, ' '), '') FROM pg_trigger WHERE tgname LIKE 'fencegate%'",
    )
}

#[test]
fn a_wrong_letter_removes_no_guard() {
    let both = TICKS.replace("public.ticks", "public.ticks, public.jobs");
    let world = start(&both);
    assert_eq!(install(&world, &both, &[]).0, Some(0));
    // No proxy has had a session, so only the name shows the mistake.
    let wrong = both.replace("ticks", "tikcs");
    let (code, said) = install(&world, &wrong, &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("public.tikcs does not exist in postgres; did you mean public.ticks? The guard of public.ticks would be removed"), "{said}");
    let (code, said) = install(&world, &format!("{both}databases: [app]\n"), &[]);
    assert!(code == Some(1) && said.contains("the policies fence nothing in database postgres"), "{said}");
    // These policies are not in force.
    ok(&mut world.holder(7), "INSERT INTO ticks VALUES (1)");
    let (code, said) = install(&world, TICKS, &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("the proxies do not have these policies in force: different policies of resource scheduler"),
        "{said}"
    );
    let _open = world.login();
    wait_until("the fence is enforced", DEADLINE, || {
        console(&world.proxy).rows("SHOW POLICIES").unwrap().iter().all(|row| row[9].as_deref() == Some("enforced"))
    });
    let elsewhere = TICKS.replace("scheduler", "another");
    wait_until("a live proxy reports it", DEADLINE, || {
        install(&world, &elsewhere, &[]).1.contains("enforces a fence that these")
    });
    assert_eq!(guarded(&world), "jobs ticks");
    // Permitted once the policies are in force, or with --force. The output lists what was removed.
    assert_eq!(reload(&world, TICKS), "");
    let (code, said) = install(&world, TICKS, &[]);
    assert_eq!((code, guarded(&world).as_str()), (Some(0), "ticks"), "{said}");
    assert!(said.contains("removed the guard from public.jobs: the policies no longer fence it\n"), "{said}");
    let (code, said) = install(&world, &wrong, &["--force"]);
    assert_eq!((code, guarded(&world).as_str()), (Some(0), "jobs"), "{said}");
    assert!(said.contains("removed the guard from public.ticks"), "{said}");
}
