//! A server with `public.ticks`, fenced by an election in a real etcd.

use crate::support::postgres::Postgres;
use crate::support::programs::run;
use crate::support::ticks;
use crate::support::wire::Fields;
use crate::support::{DEADLINE, Etcd, Proxy, wait_until};

pub const ELECTION: &str = "/cron/scheduler/leader";

pub const POLICIES: &str = "
version: 1
resources:
  - name: scheduler
    election: /cron/scheduler/leader
    tables: [public.ticks]
";

pub const WITHOUT_ELECTION: &str = "version: 1\nresources:\n  - {name: scheduler, tables: [public.ticks]}\n";

/// A server and etcd, without a proxy.
pub struct World {
    pub postgres: Postgres,
    pub etcd: Etcd,
}

impl World {
    pub fn start() -> Self {
        Self { postgres: ticks::server(), etcd: Etcd::start() }
    }

    pub fn proxy(&self) -> Proxy {
        self.proxy_with(POLICIES)
    }

    pub fn proxy_with(&self, policies: &str) -> Proxy {
        Proxy::start(&self.postgres, policies, &["--etcd", &self.etcd.url()])
    }

    /// Adds a candidate to the election, which leads if there is no earlier one. Returns its token.
    pub fn stand(&self, who: &str) -> i64 {
        self.etcd.put_new(&format!("{ELECTION}/{who}"))
    }

    /// Ends a candidate's lease.
    pub fn depose(&self, who: &str) {
        self.etcd.delete(&format!("{ELECTION}/{who}"));
    }

    /// Number of keys below the election.
    pub fn candidates(&self) -> usize {
        let keys = run(&mut self.etcd.etcdctl(&["get", "--prefix", &format!("{ELECTION}/"), "--keys-only"])).stdout;
        String::from_utf8(keys).unwrap().lines().filter(|line| !line.is_empty()).count()
    }

    /// The epoch as generation/token, with an exclamation mark until it is drained.
    pub fn epoch(&self) -> String {
        self.postgres.value(
            "SELECT generation || '/' || token || CASE WHEN drained THEN '' ELSE '!' END FROM fencegate_state.epoch \
             WHERE resource = 'scheduler'",
        )
    }

    #[track_caller]
    pub fn wait_for_epoch(&self, epoch: &str) {
        wait_until(format!("the epoch is {epoch}"), DEADLINE, || self.epoch() == epoch);
    }

    pub fn ticks(&self) -> String {
        self.postgres.value("SELECT count(*) FROM ticks")
    }
}

#[track_caller]
pub fn detail_is(error: &Fields, presented: i64, highest: Option<i64>) {
    let highest = highest.map(|highest| format!(" highest={highest}")).unwrap_or_default();
    assert_eq!(error.detail(), format!("resource=scheduler presented={presented}{highest}"), "{error:?}");
}
