//! Upgrades under load: no client sees an error of any kind.

use super::Site;
use crate::support::fenced::{ok, value};
use crate::support::{DEADLINE, Wire, length, programs, wait_until};
use std::fs::{self, File};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// Counts the rounds of a client.
#[derive(Default)]
struct Rounds(AtomicU64);

impl Rounds {
    fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn wait_for_more(&self, what: &str) {
        let before = self.0.load(Ordering::Relaxed);
        wait_until(what, DEADLINE, || self.0.load(Ordering::Relaxed) > before + 3);
    }
}

#[test]
fn no_client_sees_an_error() {
    let site = Site::new();
    let mut proxy = site.first(&[]);
    let script = site.folder.join("script");
    fs::write(&script, "SELECT 1;\n").unwrap();
    let errors = site.folder.join("pgbench");
    let mut pgbench = programs::pgbench(&site.address(), "postgres")
        .args(["-C", "-n", "-c", "4", "-j", "2", "-T", "3600", "-f"])
        .arg(&script)
        .stdout(File::create(site.folder.join("report")).unwrap())
        .stderr(File::create(&errors).unwrap())
        .spawn()
        .unwrap();
    let (over, address) = (AtomicBool::new(false), site.address());
    let (pooled, leader, reconnecting) = (Rounds::default(), Rounds::default(), Rounds::default());
    let login = || Wire::login(&address, "postgres", "postgres");
    let repeat = |rounds: &Rounds, round: &mut dyn FnMut()| {
        while !over.load(Ordering::Relaxed) {
            round();
            rounds.add();
        }
    };
    let mut predecessors = Vec::new();
    thread::scope(|scope| {
        // Sessions of a pool. Each stays with the proxy that accepted it.
        scope.spawn(|| {
            let mut pool: Vec<Wire> = (0..4).map(|_| login()).collect();
            let mut oldest = 0;
            repeat(&pooled, &mut || {
                pool.iter_mut().for_each(|wire| ok(wire, "BEGIN; SELECT count(*) FROM t; COMMIT").clear());
                // One session is replaced in each round. The other three stay.
                pool[3] = login();
                oldest += 1;
            });
        });
        scope.spawn(|| {
            let mut wire = login();
            ok(&mut wire, "SET lease.fence = 1");
            repeat(&leader, &mut || {
                assert_eq!(value(&mut wire, "INSERT INTO t DEFAULT VALUES RETURNING token").as_deref(), Some("1"));
            });
        });
        scope.spawn(|| {
            repeat(&reconnecting, &mut || {
                let mut wire = login();
                ok(&mut wire, "SET lease.fence = 1; INSERT INTO t DEFAULT VALUES");
            });
        });
        for _ in 0..length(5, 20) {
            let successor = site.upgrade(&mut proxy, &[]);
            predecessors.push(std::mem::replace(&mut proxy, successor));
            [&pooled, &leader, &reconnecting].into_iter().for_each(|it| it.wait_for_more("clients continue"));
        }
        over.store(true, Ordering::Relaxed);
    });
    let ended = pgbench.try_wait().unwrap();
    pgbench.kill().unwrap();
    pgbench.wait().unwrap();
    assert_eq!((ended, fs::read_to_string(&errors).unwrap()), (None, String::new()));
    // The predecessors' sessions have ended, so the predecessors end by themselves.
    for mut predecessor in predecessors {
        assert_eq!(predecessor.program.wait(), 0, "{}", predecessor.log());
        assert!(!predecessor.log().contains("ending_sessions"), "{}", predecessor.log());
    }
}
