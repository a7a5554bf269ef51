//! Listening addresses that a reload replaces.

use super::sockets::page;
use super::{Generation, Site};
use crate::support::fenced::{ok, value};
use crate::support::guardian::Port;
use crate::support::{Address, DEADLINE, Wire, wait_until};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

/// Writes the settings file and returns its path.
fn configure(site: &Site, listen: &[String], http: &Port) -> String {
    let file = site.folder.join("fencegate.yaml");
    let http = http.number();
    fs::write(&file, format!("listen: [{}]\nhttp: 127.0.0.1:{http}\n", listen.join(", "))).unwrap();
    file.display().to_string()
}

fn local(port: &Port) -> String {
    format!("127.0.0.1:{}", port.number())
}

fn login(port: &Port) -> Wire {
    Wire::login(&Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, port.number()))), "postgres", "postgres")
}

fn is_open(port: &Port) -> bool {
    TcpStream::connect(("127.0.0.1", port.number())).is_ok()
}

fn start(site: &Site, file: &str) -> Generation {
    let mut proxy = site.start_with(&["--config", file]);
    proxy.wait_for("metrics_served");
    proxy
}

#[test]
fn new_addresses_open_and_old_ones_close() {
    let site = Site::new();
    let (next, next_http) = (Port::claim(), Port::claim());
    let socket = site.folder.join("socket").display().to_string();
    let file = configure(&site, &[local(&site.port), socket], &site.http);
    let mut proxy = start(&site, &file);
    let mut open = site.login();
    ok(&mut open, "BEGIN");

    configure(&site, &[local(&next)], &next_http);
    proxy.program.signal("HUP");
    wait_until("the old addresses are closed", DEADLINE, || {
        !is_open(&site.port) && !is_open(&site.http) && !site.socket().exists()
    });
    assert_eq!(value(&mut login(&next), "SELECT 1").as_deref(), Some("1"), "{}", proxy.log());
    assert!(page(&next_http, "/readyz").contains("200 OK"));
    ok(&mut open, "COMMIT");

    // A successor receives the sockets of the reload.
    let mut successor = start(&site, &file);
    proxy.wait_for("sockets_handed_over");
    assert_eq!(value(&mut login(&next), "SELECT 1").as_deref(), Some("1"), "{}", successor.log());
    assert!(!successor.log().contains("socket_not_used"), "{}", successor.log());
    drop(open);
    assert_eq!(proxy.program.wait(), 0);
    successor.program.signal("TERM");
    assert_eq!(successor.program.wait(), 0);
}

#[test]
fn an_address_that_is_not_available_changes_nothing() {
    let site = Site::new();
    let next = Port::claim();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let file = configure(&site, &[local(&site.port)], &site.http);
    let mut proxy = start(&site, &file);
    let unavailable = taken.local_addr().unwrap().to_string();
    configure(&site, &[local(&next), unavailable.clone()], &next);
    proxy.program.signal("HUP");
    proxy.wait_for("reload_failed");
    assert!(
        proxy.log().contains(&format!("cannot listen on {unavailable}: Address already in use")),
        "{}",
        proxy.log()
    );
    assert!(!is_open(&next));
    assert_eq!(value(&mut site.login(), "SELECT 1").as_deref(), Some("1"));
    assert!(page(&site.http, "/readyz").contains("200 OK"));
}

/// The kernel refuses an address that overlaps an open one, even if the reload would close the open one.
#[test]
fn an_overlapping_address_needs_two_reloads() {
    let (site, other) = (Site::new(), Port::claim());
    let (narrow, wide) = (local(&site.port), format!("0.0.0.0:{}", site.port.number()));
    let file = configure(&site, std::slice::from_ref(&narrow), &site.http);
    let mut proxy = start(&site, &file);
    configure(&site, std::slice::from_ref(&wide), &site.http);
    proxy.program.signal("HUP");
    proxy.wait_for("reload_failed");
    let advice = format!("close it with a first reload, and open {wide} with a second one");
    assert!(proxy.log().contains(&format!("{narrow} is open")) && proxy.log().contains(&advice), "{}", proxy.log());
    assert_eq!(value(&mut site.login(), "SELECT 1").as_deref(), Some("1"));
    for (address, opened) in [(local(&other), local(&other)), (wide.clone(), wide)] {
        configure(&site, &[address], &site.http);
        proxy.program.signal("HUP");
        proxy.wait_for(&format!("listening address=\"{opened}\""));
    }
    assert_eq!(value(&mut site.login(), "SELECT 1").as_deref(), Some("1"));
}
