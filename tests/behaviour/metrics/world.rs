//! A server, etcd, proxy and leader that serve metrics, and clients that change each of these metrics.

use crate::metrics::page::{Sample, get, samples, sum};
use crate::support::fenced::{code, init, ok};
use crate::support::guardian::{Folder, Program};
use crate::support::programs::run;
use crate::support::proxy::BINARY;
use crate::support::wait::wait_for;
use crate::support::{DEADLINE, Etcd, Options, Postgres, Proxy, ProxyOptions, Wire, ticks, wait_until};
use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

pub const ELECTION: &str = "/metrics/leader";
pub const POLICIES: &str = "version: 1
resources:
  - {name: jobs, tables: [public.jobs]}
  - {name: led, election: /metrics/policy, tables: [public.led]}
  - {name: leased, lease: metrics/lease, tables: [public.leased]}
  - {name: watched, mode: observe, tables: [public.watched]}
  - name: shard/{shard}
    tables: [{name: public.shards, key: shard}]
exempt_roles: [migrator]
";
/// Created in each database. One database is not prepared, so writes in it cannot be admitted.
const TABLES: &str =
    "CREATE TABLE jobs (n int); CREATE TABLE led (n int); CREATE TABLE watched (n int); CREATE TABLE leased (n int);
    CREATE TABLE shards (shard int, n int); GRANT ALL ON ALL TABLES IN SCHEMA public TO PUBLIC";

pub struct World {
    // Before the servers: fields are dropped in this order.
    pub proxy: Proxy,
    lead: Program,
    folder: Folder,
    pub postgres: Postgres,
    pub etcd: Etcd,
}

impl World {
    pub fn start() -> Self {
        let (etcd, postgres) = (Etcd::start(), Postgres::start(Options::default()));
        postgres.sql("CREATE ROLE migrator LOGIN");
        postgres.sql("CREATE DATABASE unprepared");
        for database in ["postgres", "unprepared"] {
            postgres.sql_in(database, TABLES);
        }
        init(&postgres, "postgres");
        ticks::may_lead(&postgres, "postgres", "metrics/lease");
        // The role of a single server matters only if sessions need the primary.
        let upstream = postgres.url() + "?target_session_attrs=primary";
        let options = ProxyOptions::default().policies(POLICIES).upstream(&upstream);
        let options = options.arguments(&["--http", "127.0.0.1:0", "--etcd", &etcd.url()]);
        let proxy = Proxy::start_with(&postgres, &options);
        let folder = Folder::new("metrics");
        let url = etcd.url();
        let lead = [BINARY, "lead", "--etcd", &url, "--election", ELECTION, "--ttl", "3", "--http", "127.0.0.1:0"];
        let lead = [&lead[..], &["--", "sleep", "1000"]].concat();
        let lead = Program::start(&lead, &folder.join("log"), "KILL");
        Self { proxy, lead, folder, postgres, etcd }
    }

    pub fn of_proxy(&self) -> SocketAddr {
        http_address(|| self.proxy.log())
    }

    pub fn of_lead(&self) -> SocketAddr {
        http_address(|| fs::read_to_string(self.folder.join("log")).unwrap_or_default())
    }

    /// Metrics of the proxy and the leader.
    pub fn samples(&self) -> Vec<Sample> {
        let pages = [self.of_proxy(), self.of_lead()].map(|address| get(address, "/metrics").body);
        samples(&pages.concat())
    }

    fn login(&self) -> Wire {
        Wire::login(&self.proxy.address(), "postgres", "postgres")
    }

    /// Causes all counted events. Each call takes over from the previous one.
    pub fn move_everything(&mut self, round: i64) {
        let token = 10 * round;
        self.delete_the_dead(token);
        self.reject_in_every_way(token);
        self.take_over(token);
        // A client of another protocol.
        Wire::connect(&self.proxy.address()).unwrap().send(b"GET / HTTP/1.1\r\n\r\n");
        let is_ready = || sum(&self.samples(), "fencegate_ready", &[]) == 1.0;
        wait_until("it is ready without sessions in unprepared databases", DEADLINE, is_ready);
        let before = self.reloads();
        self.proxy.sighup();
        wait_until("the policies are loaded again", DEADLINE, || self.reloads() > before);
        let renewals = "fencegate_lease_renew_seconds_count";
        let before = sum(&self.samples(), renewals, &[]);
        wait_until("the lease is renewed", DEADLINE, || sum(&self.samples(), renewals, &[]) > before);
    }

    fn reloads(&self) -> f64 {
        sum(&self.samples(), "fencegate_policy_reloads_total", &[])
    }

    fn reject_in_every_way(&self, token: i64) {
        let mut wire = self.login();
        assert_eq!(code(&mut wire, "INSERT INTO jobs VALUES (1)"), "LF002");
        assert_eq!(code(&mut wire, "SET lease.fence = 'none'"), "LF003");
        assert_eq!(code(&mut wire, "DO $$BEGIN END$$"), "LF004");
        ok(&mut wire, &format!("SET lease.fence = {}", token + 1));
        let observed =
            || sum(&self.samples(), "fencegate_writes_total", &[("resource", "watched"), ("verdict", "admitted")]);
        let before = observed();
        ok(&mut wire, "INSERT INTO jobs VALUES (1); INSERT INTO shards VALUES (3, 1); INSERT INTO watched VALUES (1)");
        // The proxy does not wait for the observing fence. Until that fence has the token, no write in it is stale.
        wait_until("the observing fence has the token", DEADLINE, || observed() > before);
        // If etcd takes 3 s to answer, the token's state is unknown.
        let unissued = wait_for("etcd answers", DEADLINE, || {
            Some(code(&mut wire, "INSERT INTO led VALUES (1)")).filter(|code| code != "LF006")
        });
        assert_eq!(unissued, "LF005");
        let mut stale = self.login();
        ok(&mut stale, &format!("SET lease.fence = {token}"));
        assert_eq!(code(&mut stale, "INSERT INTO jobs VALUES (1)"), "LF001");
        ok(&mut stale, "INSERT INTO watched VALUES (1)");
        let mut unprepared = Wire::login(&self.proxy.address(), "postgres", "unprepared");
        ok(&mut unprepared, "SET lease.fence = 1");
        assert_eq!(code(&mut unprepared, "INSERT INTO jobs VALUES (1)"), "LF006");
        let mut migrator = Wire::login(&self.proxy.address(), "migrator", "postgres");
        ok(&mut migrator, "INSERT INTO jobs VALUES (1)");
    }

    /// Drains a dead process before the proxy removes it: in the first round, no session has ended yet.
    fn delete_the_dead(&self, token: i64) {
        let mut wire = self.login();
        ok(&mut wire, &format!("SET lease.fence = {token}"));
        let dead = "SELECT pg_backend_pid(), '2001-01-01', 'jobs', 1, 1, 'another proxy', now()";
        self.postgres.sql(&format!("INSERT INTO fencegate_state.admission {dead}"));
        ok(&mut wire, "INSERT INTO jobs VALUES (1)");
    }

    /// Drains three sessions: an idle one, one that has written nothing in its transaction, and one that has written.
    fn take_over(&self, token: i64) {
        let [mut idle, mut reading, mut writing, mut next] = [(); 4].map(|()| self.login());
        for wire in [&mut idle, &mut reading, &mut writing] {
            ok(wire, &format!("SET lease.fence = {}", token + 2));
            ok(wire, "INSERT INTO jobs VALUES (1)");
        }
        ok(&mut reading, "BEGIN; SELECT 1");
        ok(&mut writing, "BEGIN; INSERT INTO jobs VALUES (1)");
        ok(&mut next, &format!("SET lease.fence = {}", token + 3));
        ok(&mut next, "INSERT INTO jobs VALUES (1)");
    }

    /// Elects the leader that the policy follows, and returns its token.
    pub fn elect(&self) -> i64 {
        self.postgres.sql("SELECT fencegate.acquire('metrics/lease', 'a', '1 hour')");
        self.etcd.put_new("/metrics/policy/1")
    }

    pub fn stop_lead(&mut self) {
        self.lead.signal("TERM");
        self.lead.wait();
    }
}

/// Address of the metrics, according to the log.
pub fn http_address(log: impl Fn() -> String) -> SocketAddr {
    wait_for("metrics are served", DEADLINE, || {
        let log = log();
        let (_, rest) = log.split_once("metrics_served address=\"")?;
        rest.split_once('"')?.0.parse().ok()
    })
}

/// A Prometheus that scrapes the proxy and the leader, in its own folder.
pub struct Scraper {
    _program: Program,
    _folder: Folder,
    address: SocketAddr,
}

impl Scraper {
    pub fn start(world: &World) -> Self {
        let folder = Folder::new("prometheus");
        let port = crate::support::guardian::Port::claim();
        let (proxy, lead) = (world.of_proxy(), world.of_lead());
        let configuration = format!(
            "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\nscrape_configs:\n\
             - {{job_name: fencegate, static_configs: [{{targets: ['{proxy}']}}]}}\n\
             - {{job_name: fencegate-lead, static_configs: [{{targets: ['{lead}']}}]}}\n"
        );
        let file = folder.join("prometheus.yml");
        fs::write(&file, configuration).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port.number()));
        let command = [
            "prometheus".to_owned(),
            format!("--config.file={}", file.display()),
            format!("--storage.tsdb.path={}", folder.join("data").display()),
            format!("--web.listen-address={address}"),
        ];
        let program = Program::start(&command, &folder.join("log"), "KILL");
        let scraper = Self { _program: program, _folder: folder, address };
        wait_until("Prometheus is ready", DEADLINE, || scraper.is_ready());
        scraper
    }

    fn is_ready(&self) -> bool {
        let asked = std::net::TcpStream::connect_timeout(&self.address, Duration::from_secs(1)).is_ok();
        asked && get(self.address, "/-/ready").status == 200
    }

    /// The values that a query returns now.
    pub fn query(&self, query: &str) -> Vec<String> {
        let url = format!("http://{}", self.address);
        let output = run(std::process::Command::new("promtool").args(["query", "instant", &url, query]));
        let text = String::from_utf8(output.stdout).unwrap();
        // {labels} => value @[time]
        let value = |line: &str| Some(line.rsplit_once("=> ")?.1.split(' ').next()?.to_owned());
        text.lines().filter_map(value).collect()
    }
}
