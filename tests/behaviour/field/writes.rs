//! Writes of a deposed leader that arrive or commit after its successor's.

use super::{Field, NEW, OLD, is_kept_out, lands};
use crate::support::link::{Fault, Link};
use crate::support::message::query;
use crate::support::ticks::{WRITE, ok, process, session, wait_for_process, wait_until_harmless};
use crate::support::wire::{Address, Wire};

fn writes(field: &Field, token: i64) -> Wire {
    let mut wire = session(&field.address(), token);
    ok(&mut wire, WRITE);
    wire
}

/// A leader is suspended for longer than its lease, and writes when it resumes.
mod pause {
    use super::*;

    fn scenario(field: &mut Field) {
        let mut old = writes(field, OLD);
        writes(field, NEW);
        let _ = old.query(WRITE);
    }

    #[test]
    fn a_naive_write_lands() {
        lands(scenario);
    }

    #[test]
    fn a_fenced_write_is_kept_out() {
        is_kept_out(scenario);
    }
}

/// The network delays a message until its sender has been deposed.
mod delayed_message {
    use super::*;

    fn scenario(field: &mut Field) {
        let port = field.address().host_and_port().1.parse().unwrap();
        let link = Link::to(port);
        let address = Address::Tcp(([127, 0, 0, 1], link.port()).into());
        let mut old = session(&address, OLD);
        ok(&mut old, WRITE);
        link.suffer(Fault::Silent);
        old.send(&query(WRITE));
        writes(field, NEW);
        link.mend();
        let _ = old.read_until_ready();
    }

    #[test]
    fn a_naive_write_lands() {
        lands(scenario);
    }

    #[test]
    fn a_fenced_write_is_kept_out() {
        is_kept_out(scenario);
    }
}

/// The client has died, but the server continues its last statement.
mod statement_of_a_dead_client {
    use super::*;

    fn scenario(field: &mut Field) {
        let mut holder = Wire::login(&field.postgres.address(), "postgres", "postgres");
        ok(&mut holder, "SELECT pg_advisory_lock(1)");
        let mut old = session(&field.address(), OLD);
        ok(&mut old, WRITE);
        let pid = process(&mut old);
        old.send(&query("INSERT INTO ticks (note) SELECT 'late' FROM pg_advisory_lock_shared(1)"));
        wait_for_process(&field.postgres, &pid, "wait_event = 'advisory'");
        drop(old);
        writes(field, NEW);
        ok(&mut holder, "SELECT pg_advisory_unlock(1)");
        wait_until_harmless(&field.postgres, &pid);
    }

    #[test]
    fn a_naive_write_lands() {
        lands(scenario);
    }

    #[test]
    fn a_fenced_write_is_kept_out() {
        is_kept_out(scenario);
    }
}

/// The token is checked before the write, even in the same transaction, but a pause separates the check from COMMIT.
mod check_before_the_write {
    use super::*;

    fn scenario(field: &mut Field) {
        let mut old = session(&field.address(), OLD);
        for sql in ["BEGIN", "SELECT max(token) <= 7 FROM ticks", WRITE] {
            ok(&mut old, sql);
        }
        writes(field, NEW);
        let _ = old.query("COMMIT");
    }

    #[test]
    fn a_naive_write_lands() {
        lands(scenario);
    }

    #[test]
    fn a_fenced_write_is_kept_out() {
        is_kept_out(scenario);
    }
}

/// Writers lock the row with the highest token FOR KEY SHARE while they write. An update of that row does not wait for
/// them.
mod for_key_share {
    use super::*;

    /// True if the successor's token is in force while the old transaction is open.
    fn overtakes(lock: &str) -> bool {
        let field = Field::start(crate::support::Via::Direct);
        let mut old = session(&field.address(), OLD);
        ok(
            &mut old,
            "CREATE TABLE highest (resource text PRIMARY KEY, token bigint); INSERT INTO highest VALUES ('r', 7)",
        );
        ok(&mut old, "BEGIN");
        ok(&mut old, &format!("SELECT token FROM highest WHERE resource = 'r' {lock}"));
        ok(&mut old, WRITE);
        let mut new = session(&field.address(), NEW);
        ok(&mut new, "SET lock_timeout = '1s'");
        let raised = new.rows("UPDATE highest SET token = 8 WHERE resource = 'r'").is_ok();
        ok(&mut old, "COMMIT");
        raised
    }

    #[test]
    fn for_key_share_does_not_keep_the_successor_waiting() {
        assert!(overtakes("FOR KEY SHARE"));
    }

    #[test]
    fn for_share_does() {
        assert!(!overtakes("FOR SHARE"));
    }

    /// The same scenario through the proxy.
    #[test]
    fn a_fenced_write_is_kept_out() {
        is_kept_out(|field| {
            let mut old = session(&field.address(), OLD);
            ok(&mut old, "BEGIN");
            ok(&mut old, WRITE);
            writes(field, NEW);
            let _ = old.query("COMMIT");
        });
    }
}
