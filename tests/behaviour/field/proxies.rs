//! Proxies that reply instead of the server.

use super::{Field, NEW, OLD};
use crate::support::Via;
use crate::support::ticks::{WRITE, ok, refused, session};
use crate::support::wire::{Address, Wire};

/// A proxy that replies to a statement itself: the client receives an error, but the server's transaction is not
/// aborted.
mod error_that_a_proxy_makes_up {
    use super::*;

    /// The server's side of such a proxy, which does not forward the statement that it rejects.
    struct MadeUp(Wire);

    impl MadeUp {
        /// True if the client receives an error.
        fn query(&mut self, sql: &str) -> bool {
            sql.contains("rejected") || self.0.rows(sql).is_err()
        }
    }

    fn written(field: &Field) -> String {
        field.postgres.value("SELECT count(*) FROM ticks")
    }

    #[test]
    fn a_transaction_with_an_error_commits() {
        let field = Field::start(Via::Direct);
        let mut client = MadeUp(session(&field.address(), OLD));
        let errors = ["BEGIN", WRITE, "INSERT INTO rejected VALUES (1)", "COMMIT"].map(|sql| client.query(sql));
        assert_eq!(errors, [false, false, true, false]);
        assert_eq!(written(&field), "1", "half of the transaction");
    }

    #[test]
    fn ours_rolls_back() {
        let field = Field::start(Via::Proxy);
        let mut client = session(&field.address(), OLD);
        ok(&mut client, "BEGIN");
        ok(&mut client, WRITE);
        refused(&mut client, "DO 'BEGIN END'", "LF004");
        refused(&mut client, "SELECT 1", "25P02");
        let frames = client.query("COMMIT");
        assert_eq!(frames[0].body, b"ROLLBACK\0");
        assert_eq!(written(&field), "0");
    }
}

/// A proxy that opens a new session after the client's own has ended within a transaction, and continues with the next
/// statement.
mod transaction_that_goes_on_elsewhere {
    use super::*;

    fn end_session(field: &Field, wire: &mut Wire) {
        let pid = crate::support::ticks::process(wire);
        field.postgres.sql(&format!("SELECT pg_terminate_backend({pid}, 5000)"));
    }

    #[test]
    fn the_second_half_commits_alone() {
        let field = Field::start(Via::Direct);
        let address: Address = field.address();
        let mut server = session(&address, OLD);
        ok(&mut server, "BEGIN");
        ok(&mut server, WRITE);
        end_session(&field, &mut server);
        // The client sees only one session.
        let mut server = session(&address, OLD);
        ok(&mut server, WRITE);
        let _ = server.query("COMMIT");
        assert_eq!(field.postgres.value("SELECT count(*) FROM ticks"), "1", "half of the transaction");
    }

    #[test]
    fn ours_ends_the_clients_session() {
        let field = Field::start(Via::Proxy);
        let mut client = session(&field.address(), NEW);
        ok(&mut client, "BEGIN");
        ok(&mut client, WRITE);
        end_session(&field, &mut client);
        let frames = client.read_to_end();
        let error = crate::support::wire::error_in(&frames).expect("an error");
        assert_eq!((error.severity(), error.code()), ("FATAL", "57P01"));
        assert_eq!(field.postgres.value("SELECT count(*) FROM ticks"), "0");
    }
}
