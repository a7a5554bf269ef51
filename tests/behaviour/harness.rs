//! The harness itself ends every process that it starts, and parses correctly.

use crate::support::cluster::{Cluster, Replication};
use crate::support::commit_order::CommitOrder;
use crate::support::guardian::{Folder, Program};
use crate::support::postgres_source::apt;
use crate::support::{Address, DEADLINE, Options, Postgres, Wire, programs, wait_until};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn commit_order_is_not_the_order_of_the_inserts() {
    let postgres = Postgres::start(Options::default());
    postgres.sql(r#"CREATE TABLE t (id int, "Odd" text, list int[], note varchar(9)[], nothing text)"#);
    let mut order = CommitOrder::start(&postgres, "postgres");
    let mut slow = crate::support::Wire::login(&postgres.address(), "postgres", "postgres");
    slow.query(r#"BEGIN; INSERT INTO t VALUES (1, 'it''s a [x]:1 ''', '{1,2}', '{"a b"}', NULL)"#);
    postgres.sql("INSERT INTO t VALUES (2), (3)");
    slow.query("COMMIT");

    let rows = order.take("public.t");
    let places: Vec<_> = rows.iter().map(|row| (row.transaction, row.number("id"))).collect();
    assert_eq!(places, [(0, 2), (0, 3), (1, 1)]);
    let column = |name: &str| rows[2].columns[name].as_deref();
    assert_eq!(column("Odd"), Some("it's a [x]:1 '"));
    assert_eq!(column("list"), Some("{1,2}"));
    assert_eq!(column("note"), Some(r#"{"a b"}"#));
    assert_eq!(column("nothing"), None);
    assert_eq!(order.take("public.t"), []);
}

/// The machine may have a newer version installed than its mirror offers, such as a security update.
#[test]
fn packages_come_from_the_mirror() {
    let folder = Folder::new("apt");
    for path in ["lists/partial", "cache/archives/partial", "mirror"] {
        fs::create_dir_all(folder.join(path)).unwrap();
    }
    let digest = "0".repeat(64);
    let write = |file: &str, text: String| fs::write(folder.join(file), text).unwrap();
    write(
        "mirror/Packages",
        format!(
            "Package: p\nVersion: 1\nArchitecture: all\nMaintainer: x\nFilename: ./p.deb\nSize: 1\nSHA256: {digest}\n\n"
        ),
    );
    write(
        "mirror/Sources",
        format!(
            "Package: s\nBinary: p\nVersion: 1\nDirectory: .\nFormat: 1.0\nChecksums-Sha256:\n {digest} 1 s_1.dsc\n\n"
        ),
    );
    let shown = folder.path().display();
    write(
        "sources.list",
        ["deb-src", "deb"].map(|kind| format!("{kind} [trusted=yes] file:{shown}/mirror ./\n")).concat(),
    );
    write(
        "status",
        "Package: p\nStatus: install ok installed\nVersion: 2\nArchitecture: all\nSource: s\n\n".to_owned(),
    );
    write("preferences", "Package: *\nPin: release *\nPin-Priority: -1\n".to_owned());
    write(
        "apt.conf",
        format!(
            "Dir::State::status \"{shown}/status\";\nDir::Etc::preferences \"{shown}/preferences\";\nAPT::Default-Release \"other\";\n"
        ),
    );
    let apt = |arguments: &[&str]| {
        let mut command = apt(folder.path());
        let output = programs::run(command.args(arguments).env("APT_CONFIG", folder.join("apt.conf")));
        String::from_utf8(output.stdout).unwrap()
    };
    apt(&["update", "--error-on=any"]);
    assert!(apt(&["source", "--print-uris", "s"]).contains("mirror/./s_1.dsc"));
    assert!(apt(&["download", "--print-uris", "p"]).contains("mirror/./p.deb"));
}

#[test]
fn a_crash_keeps_commits() {
    let mut postgres = Postgres::start(Options::default());
    postgres.sql("CREATE TABLE t (id int); INSERT INTO t VALUES (7)");
    postgres.crash_restart();
    assert_eq!(postgres.value("SELECT id FROM t"), "7");
    assert!(postgres.log().contains("database system was not properly shut down"), "{}", postgres.log());
    postgres.stop();
    postgres.start_again();
    assert_eq!(postgres.value("SELECT id FROM t"), "7");
}

/// Starts this test program again, to run only `waits_to_be_killed`, and kills it during the test.
#[test]
fn a_killed_test_leaves_nothing_behind() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "harness::waits_to_be_killed", "--nocapture"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut told = |name: &str| lines.find_map(|line| Some(line.split_once(name)?.1.to_owned())).expect("a line");
    let (process, folder) = (format!("/proc/{}", told("process=")), told("folder="));
    let postmaster = std::fs::read_to_string(Path::new(&folder).join("data/postmaster.pid")).unwrap();
    let server = format!("/proc/{}", postmaster.lines().next().unwrap());
    assert!(Path::new(&process).exists() && Path::new(&server).exists());

    child.kill().unwrap();
    child.wait().unwrap();
    // A server ends on its own after its folder is removed.
    wait_until("the program has ended", DEADLINE, || !Path::new(&process).exists());
    wait_until("the server has ended", DEADLINE, || !Path::new(&server).exists());
    wait_until("its folder is gone", DEADLINE, || !Path::new(&folder).exists());
}

#[test]
#[ignore = "a part of a_killed_test_leaves_nothing_behind"]
fn waits_to_be_killed() {
    let postgres = Postgres::start(Options::default());
    let program = Program::start(&["sleep", "600"], &postgres.socket_dir().join("log of sleep"), "KILL");
    println!("process={}", program.pid());
    println!("folder={}", postgres.socket_dir().display());
    loop {
        std::thread::park();
    }
}

#[test]
#[ignore = "needs what comes from the network: make soak"]
fn drivers_are_at_hand() {
    let postgres = Postgres::start(Options::default());
    let (_, port) = postgres.address().host_and_port();
    let python = "import psycopg, asyncpg, sys; \
        print(psycopg.connect(host='127.0.0.1', port=sys.argv[1], user='postgres').execute('SELECT 42').fetchone()[0])";
    let output = programs::run(Command::new(programs::python()).args(["-c", python, &port]));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "42");
    let node = "const { Client } = require('pg'); \
        const client = new Client({ host: '127.0.0.1', port: +process.argv[1], user: 'postgres', database: 'postgres' }); \
        client.connect().then(() => client.query('SELECT 42 AS n')) \
        .then(result => { console.log(result.rows[0].n); return client.end() });";
    let output = programs::run(Command::new("node").current_dir(programs::node_folder()).args(["-e", node, &port]));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "42");
}

#[test]
fn a_cluster_loses_commits_at_a_promotion_and_takes_the_old_primary_back() {
    let mut cluster = Cluster::start(2, Replication::Asynchronous, |primary| {
        primary.sql("CREATE TABLE t (n int); INSERT INTO t VALUES (1)");
    });
    let rows =
        |cluster: &Cluster, node: usize| cluster[node].value("SELECT string_agg(n::text, ' ' ORDER BY n) FROM t");
    // Whether the server at this port is a standby. None without a server.
    let is_standby = |port: u16| {
        let mut wire = Wire::connect(&Address::Tcp(([127, 0, 0, 1], port).into())).ok()?;
        let greeting = wire.start(&[("user", "postgres"), ("database", "postgres")], "");
        let is_standby = (!greeting.is_empty()).then(|| wire.rows("SELECT pg_is_in_recovery()").unwrap())?;
        is_standby[0][0].as_deref().map(|it| it == "t")
    };
    assert_eq!((rows(&cluster, 1), rows(&cluster, 2), cluster.timeline(0)), ("1".into(), "1".into(), 1));
    assert_eq!(
        cluster.hosts(),
        format!("127.0.0.1:{},127.0.0.1:{},127.0.0.1:{}", cluster.port(0), cluster.port(1), cluster.port(2))
    );

    for standby in [1, 2] {
        cluster.stop_replication(standby);
    }
    cluster[0].sql("INSERT INTO t VALUES (2)");
    cluster.cut_off(0);
    assert_eq!(is_standby(cluster.port(0)), None);
    assert_eq!(rows(&cluster, 0), "1 2", "it is alive");
    assert_eq!(is_standby(cluster.port(1)), Some(true));
    cluster.promote(1);
    assert_eq!((cluster.primary(), cluster.timeline(1), rows(&cluster, 1)), (1, 2, "1".to_owned()));
    assert_eq!(is_standby(cluster.port(1)), Some(false));
    cluster.move_to(1);
    assert_eq!(is_standby(cluster.moving_port()), Some(false));
    cluster.reconnect(0);
    assert_eq!(is_standby(cluster.port(0)), Some(false), "two primaries");

    cluster.follow(2);
    cluster.rewind(0);
    cluster.set_replication(Replication::Synchronous);
    cluster[1].sql("INSERT INTO t VALUES (3)");
    for standby in [0, 2] {
        cluster.catch_up(standby);
        assert_eq!(rows(&cluster, standby), "1 3");
    }
    assert_eq!(is_standby(cluster.port(0)), Some(true));
}
