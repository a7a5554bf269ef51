//! Certificates are replaced while sessions continue.

use super::world::{World, leak, offering, psycopg, s_client};
use crate::support::certificates::{Authority, Certificate, Validity, text};
use crate::support::guardian::Folder;
use crate::support::{DEADLINE, Options, Postgres, Proxy, ProxyOptions, Wire, wait_until};
use std::fs;

/// One usable part is not put in force without the other. A successful reload reports what has changed.
#[test]
fn certificates_of_both_sides_are_replaced_together_or_not_at_all() {
    let folder = Folder::new("roots");
    let [roots, missing] = ["roots.pem", "missing.pem"].map(|name| folder.join(name));
    let server = Authority::new("server");
    fs::copy(server.pem(), &roots).unwrap();
    let world = World::start(&["--upstream-sslrootcert", leak(text(&roots))]);
    let [certificate, key] = ["proxy.pem", "proxy.key"].map(|name| world.authority.pem().with_file_name(name));
    let mut console = Wire::login(&world.proxy.address(), "postgres", "fencegate");
    assert_eq!(console.rows("RELOAD"), Ok(Vec::new()));

    let renewed = world.authority.sign_local("renewed");
    fs::copy(&renewed.pem, &certificate).unwrap();
    fs::copy(&renewed.key, &key).unwrap();
    fs::rename(&roots, &missing).unwrap();
    fs::write(&roots, "nothing").unwrap();
    let error = console.rows("RELOAD").unwrap_err();
    assert!(error.code() == "F0000" && error.message().contains("sslrootcert: "), "{error:?}");
    assert_eq!(name_seen(&world), "proxy");

    fs::copy(&missing, &roots).unwrap();
    let row = |name: &str| {
        [Some("certificate"), Some(name), Some("content"), None, None, Some("t")]
            .map(|it| it.map(str::to_owned))
            .to_vec()
    };
    assert_eq!(console.rows("RELOAD"), Ok(vec![row("tls_cert"), row("tls_key")]));
    assert_eq!(name_seen(&world), "renewed");
    world.proxy.wait_for_log(r#"certificate_changed key="tls_cert""#, DEADLINE);
    fs::copy(world.authority.pem(), &roots).unwrap();
    let rows = console.rows("RELOAD").unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0][1].as_deref(), Some("upstream_sslrootcert"));
}

fn name_seen(world: &World) -> String {
    let (_, said) = s_client(&world.proxy.address(), "-starttls postgres");
    said.lines().find_map(|line| line.strip_prefix("subject=CN = ")).expect("a subject").to_owned()
}

#[test]
fn a_new_certificate_counts_from_the_next_connection_on() {
    let mut world = World::start(&[]);
    let [certificate, key] = ["proxy.pem", "proxy.key"].map(|name| world.authority.pem().with_file_name(name));
    assert_eq!(name_seen(&world), "proxy");
    let renewed = world.authority.sign_local("renewed");

    // Only the certificate has been replaced, and the key does not belong to it.
    fs::copy(&renewed.pem, &certificate).unwrap();
    world.proxy.sighup();
    let complaint = format!("tls_key: {}: is not the key of the certificate in {}", text(&key), text(&certificate));
    world.proxy.wait_for_log(leak(complaint), DEADLINE);
    assert_eq!(name_seen(&world), "proxy");

    // An old session continues.
    let old = super::fence::connect(&world.proxy.address(), &world.authority.pem());
    fs::copy(&renewed.key, &key).unwrap();
    world.proxy.sighup();
    wait_until("the new certificate is shown", DEADLINE, || name_seen(&world) == "renewed");
    old.runtime.block_on(old.client.batch_execute("SELECT 1")).unwrap();
    assert_eq!(psycopg(&world.proxy.address(), "sslmode=require", super::direct::SELECT).as_deref(), Ok("1"));

    fs::write(&certificate, "nothing").unwrap();
    world.proxy.sighup();
    world.proxy.wait_for_log(leak(format!("tls_cert: {}: contains no certificate", text(&certificate))), DEADLINE);
    fs::remove_file(&key).unwrap();
    fs::copy(&renewed.pem, &certificate).unwrap();
    world.proxy.sighup();
    world.proxy.wait_for_log(leak(format!("tls_key: {}: cannot read the file: No such file", text(&key))), DEADLINE);
    assert_eq!(name_seen(&world), "renewed");
    old.runtime.block_on(old.client.batch_execute("SELECT 1")).unwrap();
}

#[test]
fn a_certificate_outside_its_validity_causes_a_warning() {
    let authority = Authority::new("authority");
    let names = "DNS:localhost,IP:127.0.0.1";
    let expired = authority.sign("expired", names, Validity::Expired);
    let postgres = Postgres::start(Options::default());
    let mut proxy = Proxy::start_with(&postgres, &ProxyOptions::default().arguments(&offering(&expired)));
    let warnings = |proxy: &Proxy| -> Vec<String> {
        proxy.log().lines().filter(|line| line.contains("certificate_not_valid")).map(str::to_owned).collect()
    };
    let dates = "not_before=\"2020-01-01T00:00:00Z\" not_after=\"2020-01-02T00:00:00Z\"";
    let file = format!("file={:?} {dates}", text(&expired.pem));
    proxy.wait_for_log("certificate_not_valid", DEADLINE);
    assert!(warnings(&proxy).len() == 1 && warnings(&proxy)[0].contains(&file), "{}", proxy.log());

    let mut renew = |with: &Certificate, loaded: usize| {
        fs::copy(&with.pem, &expired.pem).unwrap();
        fs::copy(&with.key, &expired.key).unwrap();
        proxy.sighup();
        wait_until("it is in force", DEADLINE, || proxy.log().matches("policies_loaded").count() == loaded);
        warnings(&proxy).len()
    };
    assert_eq!(renew(&authority.sign_local("good"), 1), 1);
    assert_eq!(renew(&authority.sign("later", names, Validity::NotYet), 2), 2);
}
