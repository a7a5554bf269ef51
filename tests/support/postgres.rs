//! A PostgreSQL server for one test: a new one, or one that an earlier test has left and that was reset.
//!
//! Starting a server takes longer than most tests. A reset undoes the changes of a test (databases, roles, sessions,
//! prepared transactions, slots). If the reset fails, or other changes remain, the server is discarded.

pub use super::server::{Options, Release, Rows, SUPERUSER, Server, give_to_server, server_command};
use super::wire::Wire;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};

/// Servers that no test uses.
static IDLE: Mutex<Vec<Server>> = Mutex::new(Vec::new());
const MOST_IDLE: usize = 12;

/// True for a server in its initial state, without a database.
const IS_AS_NEW: &str = "SELECT (SELECT count(*) FROM pg_database WHERE datname NOT IN ('template0', 'template1')) \
    + (SELECT count(*) FROM pg_database WHERE NOT datistemplate OR datconnlimit <> -1) \
    + (SELECT count(*) FROM pg_class WHERE oid >= 16384) + (SELECT count(*) FROM pg_namespace WHERE oid >= 16384) \
    + (SELECT count(*) FROM pg_proc WHERE oid >= 16384) + (SELECT count(*) FROM pg_authid WHERE oid >= 16384) \
    + (SELECT count(*) FROM pg_tablespace WHERE oid >= 16384) + (SELECT count(*) FROM pg_subscription) \
    + (SELECT count(*) FROM pg_replication_slots) + (SELECT count(*) FROM pg_prepared_xacts) \
    + (SELECT count(*) FROM pg_db_role_setting) + (SELECT count(*) FROM pg_auth_members WHERE member >= 16384 OR roleid >= 16384) \
    + (SELECT count(*) FROM pg_file_settings WHERE sourcefile LIKE '%auto.conf') \
    + (SELECT count(*) FROM pg_authid WHERE rolpassword IS NOT NULL OR rolvaliduntil IS NOT NULL OR rolconnlimit <> -1) \
    + (SELECT count(*) FROM pg_stat_activity WHERE backend_type IN ('client backend', 'walsender') \
       AND pid <> pg_backend_pid()) = 0";

/// A running server. When dropped, it is stopped and removed, or kept for another test.
pub struct Postgres {
    /// Present until the server is dropped.
    server: Option<Server>,
    /// The test has stopped or restarted the server.
    is_altered: bool,
    users: Arc<()>,
}

impl Postgres {
    pub fn start(options: Options) -> Self {
        let server = take_idle(&options).unwrap_or_else(|| Server::start(options));
        Self { server: Some(server), is_altered: false, users: Arc::new(()) }
    }

    /// See [`Server::promoted_backup`].
    pub fn promoted_backup(&self) -> Self {
        Self::of(Server::promoted_backup(self))
    }

    /// A server that no other test can use afterward.
    pub fn of(server: Server) -> Self {
        Self { server: Some(server), is_altered: true, users: Arc::new(()) }
    }

    /// Held by programs that connect to the server themselves. A server in use is not given to another test.
    pub fn user(&self) -> Arc<()> {
        self.users.clone()
    }
}

impl Deref for Postgres {
    type Target = Server;

    fn deref(&self) -> &Server {
        self.server.as_ref().expect("present until dropped")
    }
}

impl DerefMut for Postgres {
    fn deref_mut(&mut self) -> &mut Server {
        self.is_altered = true;
        self.server.as_mut().expect("present until dropped")
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let is_used = Arc::strong_count(&self.users) > 1;
        let Some(mut server) = self.server.take() else { return };
        if self.is_altered || is_used || std::thread::panicking() || !server.options().is_common() {
            return;
        }
        if make_as_new(&server).is_some() {
            server.forget_log();
            keep(server);
        }
    }
}

fn take_idle(options: &Options) -> Option<Server> {
    let mut idle = IDLE.lock().unwrap();
    let position = idle.iter().position(|server| server.options() == options)?;
    Some(idle.remove(position))
}

fn keep(server: Server) {
    let mut idle = IDLE.lock().unwrap();
    idle.push(server);
    let oldest = (idle.len() > MOST_IDLE).then(|| idle.remove(0));
    drop(idle);
    // Outside the lock, because stopping takes a moment.
    drop(oldest);
}

/// Returns None if some change cannot be undone.
fn make_as_new(server: &Server) -> Option<()> {
    let mut wire = login(server, "template1")?;
    let mut rows = |sql: &str| wire.rows(sql).ok();
    rows(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity \
         WHERE backend_type IN ('client backend', 'walsender') AND pid <> pg_backend_pid()",
    )?;
    for transaction in rows("SELECT database, format('ROLLBACK PREPARED %L', gid) FROM pg_prepared_xacts")? {
        let [Some(database), Some(rollback)] = transaction.as_slice() else { return None };
        login(server, database)?.rows(rollback).ok()?;
    }
    rows("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")?;
    let undo = "SELECT format('DROP DATABASE %I WITH (FORCE)', datname) FROM pg_database \
                WHERE datname NOT IN ('template0', 'template1') \
                UNION ALL SELECT format('DROP ROLE %I', rolname) FROM pg_roles WHERE oid >= 16384 \
                UNION ALL SELECT format('ALTER ROLE %s RESET ALL', setrole::regrole) FROM pg_db_role_setting \
                WHERE setdatabase = 0 AND setrole <> 0";
    for statement in rows(undo)?.into_iter().flatten() {
        rows(&statement?)?;
    }
    let is_as_new = rows(IS_AS_NEW)?.into_iter().flatten().next()??;
    // Copying files takes half the processor time of logging pages. PostgreSQL 14 always copies files.
    let copy = "CREATE DATABASE postgres TEMPLATE template0";
    rows(&format!("{copy} STRATEGY file_copy")).or_else(|| rows(copy))?;
    (is_as_new == "t").then_some(())
}

fn login(server: &Server, database: &str) -> Option<Wire> {
    let mut wire = Wire::connect(&server.socket()).ok()?;
    let frames = wire.start(&[("user", SUPERUSER), ("database", database)], "");
    frames.last().is_some_and(|frame| frame.tag == b'Z').then_some(wire)
}
