//! A server whose tables are fenced, with the proxy in front of it.

use super::postgres::{Options, Postgres, Rows, SUPERUSER};
use super::programs;
use super::proxy::{Proxy, ProxyOptions, fencegate};
use super::wire::{Frame, Wire, error_in, rows_in};

/// A server and its proxy. Only databases prepared by [`init`] have the schema `fencegate`.
pub struct Fenced {
    // Before the server: fields are dropped in this order.
    pub proxy: Proxy,
    pub postgres: Postgres,
}

impl Fenced {
    /// Runs `schema` and `fencegate init` in the database `postgres`, then starts the proxy.
    pub fn start(schema: &str, policies: &str) -> Self {
        Self::start_with(Options::default(), schema, &ProxyOptions::default().policies(policies))
    }

    pub fn start_with(options: Options, schema: &str, proxy: &ProxyOptions) -> Self {
        let postgres = Postgres::start(options);
        postgres.sql(schema);
        init(&postgres, "postgres");
        let proxy = Proxy::start_with(&postgres, proxy);
        Self { proxy, postgres }
    }

    /// A session through the proxy.
    pub fn login(&self) -> Wire {
        self.login_as(SUPERUSER)
    }

    pub fn login_as(&self, user: &str) -> Wire {
        Wire::login(&self.proxy.address(), user, "postgres")
    }

    /// A session through the proxy with this token.
    pub fn holder(&self, token: i64) -> Wire {
        let mut wire = self.login();
        ok(&mut wire, &format!("SET lease.fence = {token}"));
        wire
    }
}

/// Creates the schema `fencegate` in a database.
pub fn init(postgres: &Postgres, database: &str) {
    let control = postgres.control_url() + database;
    programs::run(fencegate().args(["init", "--control", &control]));
}

/// The rows of a simple query, which must succeed.
#[track_caller]
pub fn ok(wire: &mut Wire, sql: &str) -> Rows {
    wire.rows(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"))
}

/// The SQLSTATE of a simple query's error; empty if the query succeeds.
pub fn code(wire: &mut Wire, sql: &str) -> String {
    code_in(&wire.query(sql))
}

pub fn code_in(frames: &[Frame]) -> String {
    error_in(frames).map_or_else(String::new, |error| error.code().to_owned())
}

/// The first column of the first row of a simple query, which must succeed.
#[track_caller]
pub fn value(wire: &mut Wire, sql: &str) -> Option<String> {
    ok(wire, sql).into_iter().next().expect("a row").into_iter().next().expect("a column")
}

/// The first column of the last row.
pub fn last_value(frames: &[Frame]) -> Option<String> {
    rows_in(frames).pop().expect("a row").into_iter().next().expect("a column")
}
