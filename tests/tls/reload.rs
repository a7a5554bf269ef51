//! Certificates are replaced while sessions go on.

use super::support::certificates::text;
use super::support::{DEADLINE, wait_until};
use super::world::{World, leak, psycopg, s_client};
use std::fs;

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

    // Only half of it is there: the key is not that of the certificate.
    fs::copy(&renewed.pem, &certificate).unwrap();
    world.proxy.sighup();
    let complaint = format!("tls_key: {}: is not the key of the certificate in {}", text(&key), text(&certificate));
    world.proxy.wait_for_log(leak(complaint), DEADLINE);
    assert_eq!(name_seen(&world), "proxy");

    // An old session goes on beside it.
    let old = super::fence::connect(&world.proxy.address(), &world.authority.pem());
    fs::copy(&renewed.key, &key).unwrap();
    world.proxy.sighup();
    wait_until("the new certificate is shown", DEADLINE, || name_seen(&world) == "renewed");
    old.runtime.block_on(old.client.batch_execute("SELECT 1")).unwrap();
    assert_eq!(psycopg(&world.proxy.address(), "sslmode=require", super::direct::SELECT).as_deref(), Ok("1"));

    fs::write(&certificate, "nothing").unwrap();
    world.proxy.sighup();
    world.proxy.wait_for_log(leak(format!("tls_cert: {}: has no certificate in it", text(&certificate))), DEADLINE);
    fs::remove_file(&key).unwrap();
    fs::copy(&renewed.pem, &certificate).unwrap();
    world.proxy.sighup();
    world.proxy.wait_for_log(leak(format!("tls_key: {}: cannot read the file: No such file", text(&key))), DEADLINE);
    assert_eq!(name_seen(&world), "renewed");
    old.runtime.block_on(old.client.batch_execute("SELECT 1")).unwrap();
}
