//! The console while the server is unavailable.
//!
//! Owns admission during that time: over a Unix socket, root and the system user that runs the proxy. Both can read the
//! proxy's memory and settings and replace the program, so the console gives them nothing new. Must never admit a
//! client while the server answers.

use crate::net::peer::Peer;
use crate::net::upstream;
use crate::state::shared::Shared;
use bytes::{BufMut, BytesMut};
use fencegate_wire::frame::put_frame;
use fencegate_wire::message::{self, Status};
use fencegate_wire::tag::backend;
use nix::unistd::geteuid;

/// User ID that the kernel reports for users of other user namespaces (`/proc/sys/kernel/overflowuid`).
const OVERFLOW_USER: u32 = 65534;

/// AuthenticationOk.
const OK: u32 = 0;

/// True if the client may use the console without the server. `packet` is the startup packet for the server.
/// Cancel-safe.
pub(super) async fn admits(shared: &Shared, client: &Peer, role: &str, packet: &[u8]) -> bool {
    let is_admin = shared.settings().admin_roles.iter().any(|admin| admin == role);
    is_admin && runs_the_proxy(client) && upstream::is_away(shared, packet).await
}

/// True if the client's process belongs to root or to the system user that runs the proxy.
fn runs_the_proxy(client: &Peer) -> bool {
    client.system_user.is_some_and(|user| user == 0 || user == geteuid().as_raw() && user != OVERFLOW_USER)
}

/// Appends the messages that start a session, with the parameters that drivers expect.
pub(super) fn put_greeting(output: &mut BytesMut) {
    put_frame(output, backend::AUTHENTICATION, |body| body.put_u32(OK));
    let parameters = [
        ("server_encoding", "UTF8"),
        ("client_encoding", "UTF8"),
        ("DateStyle", "ISO, MDY"),
        ("integer_datetimes", "on"),
        ("standard_conforming_strings", "on"),
    ];
    for (name, value) in parameters {
        put_frame(output, backend::PARAMETER_STATUS, |body| {
            body.extend_from_slice(&[name.as_bytes(), b"\0", value.as_bytes(), b"\0"].concat());
        });
    }
    message::put_ready(output, Status::Idle);
}
