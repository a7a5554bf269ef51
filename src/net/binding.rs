//! Channel binding: whether SCRAM-SHA-256-PLUS can pass the proxy, and the error for clients if it cannot.
//!
//! Channel binding ties a client's proof to the certificate that the client sees, and the server compares it with its
//! own certificate. Authentication therefore succeeds only if both certificates are the same. RFC 5802, section 6; RFC
//! 5929, section 4.
//!
//! Must never read more of a client's response than the mechanism and the flag before the name.

use super::peer::Peer;
use bytes::{Bytes, BytesMut};
use fencegate_wire::error::ErrorText;
use fencegate_wire::frame::body;
use fencegate_wire::frame::{put_frame, split_string};
use fencegate_wire::tag::backend;

const SASL: [u8; 4] = 10_u32.to_be_bytes();
const PLUS: &[u8] = b"SCRAM-SHA-256-PLUS";

/// Channel binding in one session's authentication.
#[derive(Debug)]
pub struct Binding {
    /// Client and server see the same certificate.
    passes: bool,
    client_is_encrypted: bool,
    /// True if the server offered channel binding, the client did not see the offer, and has not answered yet.
    withheld: bool,
}

impl Binding {
    pub fn between(client: &Peer, server: &Peer) -> Self {
        let passes = match (&client.secured, &server.secured) {
            (Some(ours), Some(servers)) => ours.server_certificate == servers.server_certificate,
            _ => false,
        };
        Binding { passes, client_is_encrypted: client.secured.is_some(), withheld: false }
    }

    /// An authentication request as the client may see it: without a channel binding that would fail.
    pub fn request(&mut self, frame: Bytes) -> Bytes {
        let Some(mut names) = body(&frame).strip_prefix(&SASL).filter(|_| !self.passes) else { return frame };
        let mut kept = Vec::new();
        while let Some((name, rest)) = split_string(names) {
            if name != PLUS {
                kept.push(name);
            }
            self.withheld |= name == PLUS;
            names = rest;
        }
        if !self.withheld {
            return frame;
        }
        let mut request = BytesMut::new();
        put_frame(&mut request, backend::AUTHENTICATION, |body| {
            body.extend_from_slice(&SASL);
            kept.iter().for_each(|name| body.extend([name, &b"\0"[..]].concat()));
        });
        request.freeze()
    }

    /// Checks the client's response to the request.
    ///
    /// # Errors
    /// The server would refuse the response: it lacks an expected channel binding or has an unexpected one.
    pub fn answer(&mut self, frame: &[u8]) -> Result<(), ErrorText> {
        if !std::mem::take(&mut self.withheld) {
            return Ok(());
        }
        let Some((mechanism, first)) = split_string(body(frame)) else { return Ok(()) };
        // After the length: n, the client does not support channel binding; y, it assumes that the server does not; p,
        // it uses it.
        let flag = first.get(4);
        if mechanism != PLUS && !matches!(flag, Some(b'y' | b'p')) {
            return Ok(());
        }
        let (why, what) = match self.client_is_encrypted {
            true => (
                "the proxy's certificate differs from the server's",
                "Set channel_binding=disable in the client. Or give the proxy the server's own certificate and key (tls_cert, tls_key). Or connect the proxy to the server by a Unix socket or without TLS (upstream_sslmode=disable).",
            ),
            false => (
                "the client's connection is not encrypted",
                "Set channel_binding=disable in the client, or encrypt its connection.",
            ),
        };
        let text = ErrorText::new("28000", format!("SCRAM channel binding does not work through the proxy: {why}"));
        let detail = "Client and server support channel binding but would not agree on a certificate, which the server treats as an attack.";
        Err(text.detail(detail).hint(what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding(passes: bool) -> Binding {
        Binding { passes, client_is_encrypted: true, withheld: false }
    }

    fn frame(tag: u8, content: &[u8]) -> Bytes {
        let mut frame = BytesMut::new();
        put_frame(&mut frame, tag, |body| body.extend_from_slice(content));
        frame.freeze()
    }

    #[test]
    fn an_impossible_channel_binding_is_not_offered() {
        let offer = frame(b'R', b"\0\0\0\x0aSCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0");
        assert_eq!(binding(true).request(offer.clone()), offer);
        assert_eq!(binding(false).request(offer), frame(b'R', b"\0\0\0\x0aSCRAM-SHA-256\0\0"));
        for other in
            [&b"\0\0\0\x0aSCRAM-SHA-256\0\0"[..], b"\0\0\0\x0bSCRAM-SHA-256-PLUS\0\0", b"\0\0\0\x05salt", b"\0\0\0\0"]
        {
            let other = frame(b'R', other);
            assert_eq!(binding(false).request(other.clone()), other);
        }
    }

    #[test]
    fn a_response_that_expects_the_withheld_binding_is_rejected() {
        let answer = |withheld, content: &[u8]| Binding { withheld, ..binding(false) }.answer(&frame(b'p', content));
        assert_eq!(answer(true, b"SCRAM-SHA-256\0\0\0\0\x09n,,n=,r=abc"), Ok(()));
        assert_eq!(answer(false, b"SCRAM-SHA-256\0\0\0\0\x09y,,n=,r=abc"), Ok(()));
        for refused in
            [&b"SCRAM-SHA-256\0\0\0\0\x09y,,n=,r=abc"[..], b"SCRAM-SHA-256-PLUS\0\0\0\0\x09p=tls-server-end-point,,"]
        {
            assert_eq!(answer(true, refused).unwrap_err().code, "28000");
        }
    }
}
