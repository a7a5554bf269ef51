//! The proxy's query at the start of a session: the identity of its server process, its token and its search path.
//!
//! Owns the query and what its answer means. Must never rely on a setting of the client, or report an identity that the
//! process number in BackendKeyData contradicts.

use super::login::{Reported, next};
use super::peer::Peer;
use super::refused::Refused;
use fencegate_fence::session::{Identity, IdentityError};
use fencegate_wire::error::field;
use fencegate_wire::frame::body;
use fencegate_wire::message;
use fencegate_wire::tag::backend;
use std::sync::Arc;

/// Queries the identity of the server process, in the session itself. Names are qualified and operators avoided,
/// because the search path is the client's. The numbers are exact in every format setting.
///
/// Sets the transaction's properties, because a deferrable transaction would wait for other transactions.
///
/// The name of an exported snapshot is the cheapest source of the process number: `pg_lock_status()` reads the locks of
/// all processes. The snapshot ends with the query.
const IDENTITY_QUESTION: &str = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = 0; \
    SELECT pg_catalog.pg_backend_pid(), extract(epoch FROM a.backend_start), c.system_identifier, \
    extract(epoch FROM pg_catalog.pg_postmaster_start_time()), a.datid, \
    pg_catalog.pg_is_in_recovery(), pg_catalog.pg_export_snapshot(), pg_catalog.current_setting('lease.fence', true), pg_catalog.current_setting('search_path'), \
    pg_catalog.inet_client_addr(), pg_catalog.inet_client_port(), pg_catalog.inet_server_addr(), pg_catalog.inet_server_port() \
    FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid()) a, pg_catalog.pg_control_system() c";

/// Precedes the query if the session starts as a role other than its login role, because that role cannot see the start
/// of the process. Applies to the query only.
const AS_LOGIN: &str = "SET LOCAL ROLE NONE; ";

/// Facts that a session reports at its start.
pub struct Identified {
    pub identity: Result<Identity, IdentityError>,
    /// True unless the server reports that it is not in recovery.
    pub in_recovery: bool,
    /// The ends of the connection, as the server sees them: address and port of its client, and its own. Null for a Unix
    /// socket.
    pub ends: [Option<String>; 4],
    /// The OID of its database, because another database may have had the name before.
    pub database: Option<String>,
    /// The value of the token's parameter in the server.
    pub value: Option<String>,
    /// The search path.
    pub path: Option<String>,
    /// The schema of its temporary relations. Its name contains the process number, as do the names of exported
    /// snapshots.
    pub temporary: Option<Arc<str>>,
}

impl Identified {
    /// No facts, because of this error.
    pub fn not(error: IdentityError) -> Self {
        let identity = Err(error);
        let ends = [const { None }; 4];
        Identified { identity, in_recovery: true, ends, database: None, value: None, path: None, temporary: None }
    }
}

/// Queries the identity of the session's server process and its token. Without a response the session continues, but is
/// not admitted to any resource. Not cancel-safe.
///
/// # Errors
/// The connection to the server fails, or the client disconnects.
pub async fn identify(
    client: &mut Peer,
    server: &mut Peer,
    process_id: Option<i32>,
    reported: &mut Reported,
) -> Result<Identified, Refused> {
    let mut answer = ask(client, server, &[IDENTITY_QUESTION.as_bytes()], reported).await?;
    if let Ok([Some(pid), None, ..]) = answer.as_deref()
        && process_id.is_some_and(|id| *pid == id.to_string())
        && let Ok(seen) = ask(client, server, &[AS_LOGIN.as_bytes(), IDENTITY_QUESTION.as_bytes()], reported).await?
    {
        answer = Ok(seen);
    }
    Ok(match answer {
        Err(failure) => Identified::not(failure),
        Ok(mut columns) => {
            let mut ends = [const { None }; 4];
            ends.iter_mut().rev().for_each(|end| *end = columns.pop().flatten());
            let path = columns.pop().flatten();
            let value = columns.pop().flatten();
            let temporary = columns.pop().flatten().and_then(|snapshot| temporary_schema(&snapshot));
            let in_recovery = columns.pop().flatten().as_deref() != Some("f");
            let database = columns.pop().flatten();
            Identified { identity: identity(columns, process_id), in_recovery, ends, database, value, path, temporary }
        }
    })
}

/// The row that the session returns, or why there is none. Not cancel-safe.
async fn ask(
    client: &mut Peer,
    server: &mut Peer,
    question: &[&[u8]],
    reported: &mut Reported,
) -> Result<Result<Vec<Option<String>>, IdentityError>, Refused> {
    message::put_query(&mut server.writer.output, question);
    server.writer.flush().await.map_err(Refused::Upstream)?;
    let mut answer: Option<Vec<Option<String>>> = None;
    let mut failure = IdentityError::NoAnswer;
    let mut deadline = None;
    loop {
        let (tag, frame) = next(client, server, reported, &mut deadline).await?;
        match tag {
            backend::READY => return Ok(answer.ok_or(failure)),
            backend::DATA_ROW => (answer, reported.path) = (message::columns(body(&frame)), None),
            backend::ERROR => {
                let reason = field(body(&frame), b'M').unwrap_or_default();
                failure = IdentityError::Refused(String::from_utf8_lossy(reason).into_owned());
            }
            _ => (),
        }
    }
}

/// The schema of temporary relations of the process that has exported a snapshot of this name: the name begins with the
/// number of the process, in hexadecimal digits (`ExportSnapshot` in PostgreSQL).
fn temporary_schema(snapshot: &str) -> Option<Arc<str>> {
    let (number, _) = snapshot.split_once('-')?;
    Some(format!("pg_temp_{}", u32::from_str_radix(number, 16).ok()?).into())
}

fn identity(columns: Vec<Option<String>>, process_id: Option<i32>) -> Result<Identity, IdentityError> {
    let columns: Vec<String> = columns.into_iter().collect::<Option<_>>().ok_or(IdentityError::Incomplete)?;
    let [pid, backend_start, system_identifier, postmaster_start] =
        <[String; 4]>::try_from(columns).map_err(|_| IdentityError::Incomplete)?;
    let pid = pid.parse().map_err(|_| IdentityError::Incomplete)?;
    if process_id != Some(pid) {
        return Err(IdentityError::OtherProcess);
    }
    Ok(Identity { pid, backend_start, system_identifier, postmaster_start })
}
