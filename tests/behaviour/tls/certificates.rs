//! Certificates of clients: off, optional or required, against an authority.

use super::world::{World, leak, psql, refused};
use crate::support::certificates::{Authority, Certificate, Validity, text};

fn shown(certificate: &Certificate) -> String {
    format!("sslmode=require sslcert={} sslkey={}", text(&certificate.pem), text(&certificate.key))
}

#[test]
fn certificates_of_clients_in_each_mode() {
    let authority = Authority::new("clients");
    let good = authority.sign_local("good");
    let expired = authority.sign("expired", "DNS:x", Validity::Expired);
    let stranger = Authority::new("strangers").sign_local("stranger");
    let ca = leak(text(&authority.pem()));
    for mode in ["off", "optional", "required"] {
        let world = World::start(&["--tls-client-certificates", mode, "--tls-client-ca", ca]);
        assert_eq!(world.psql(&shown(&good)).as_deref(), Ok("in"), "{mode}");
        let without = world.psql("sslmode=require");
        if mode == "required" {
            let error = refused(without, "connection requires a valid client certificate");
            assert!(error.contains("tls_client_ca"), "{error}");
        } else {
            assert_eq!(without.as_deref(), Ok("in"), "{mode}");
        }
        for (bad, why) in [(&expired, "expired"), (&stranger, "unknown ca")] {
            match mode {
                "off" => assert_eq!(world.psql(&shown(bad)).as_deref(), Ok("in")),
                _ => drop(refused(world.psql(&shown(bad)), why)),
            }
        }
        // A client without TLS has no certificate. Another setting decides whether such clients are allowed.
        assert_eq!(world.psql("sslmode=disable").as_deref(), Ok("in"), "{mode}");
    }
    let world = World::start(&["--tls", "require", "--tls-client-certificates", "required", "--tls-client-ca", ca]);
    refused(world.psql("sslmode=disable"), "requires TLS");
    refused(
        psql(&world.proxy.address(), "sslmode=require dbname=fencegate", "SHOW FENCES"),
        "valid client certificate",
    );
}
