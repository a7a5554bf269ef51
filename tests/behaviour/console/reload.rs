//! RELOAD reports changes, or faults with their position.

use super::world::World;
use crate::support::fenced::code;
use crate::support::ticks::{self, WRITE};
use crate::support::{DEADLINE, Wire, wait_until};

fn text(column: &str) -> Option<String> {
    Some(column.to_owned())
}

#[test]
fn changes_are_reported() {
    let world = World::start();
    let mut console = world.console();
    assert_eq!(console.rows("RELOAD"), Ok(Vec::new()));
    let observing = ticks::POLICIES.replace("- name: scheduler", "- name: scheduler\n    mode: observe");
    world.proxy.write_policies(&format!("{observing}  - name: more\n    tables: [public.more]\n"));
    let rows = console.rows("RELOAD").unwrap();
    let all = "(insert, update, delete, truncate, ddl)";
    assert_eq!(
        rows,
        [
            vec![text("policy"), text("more"), text("added"), None, text(&format!("public.more {all}")), text("t")],
            vec![text("policy"), text("scheduler"), text("mode"), text("enforce"), text("observe"), text("t")],
        ]
    );
    let mut wire = Wire::login(&world.proxy.address(), "postgres", "postgres");
    wait_until("nothing is rejected any more", DEADLINE, || code(&mut wire, WRITE).is_empty());
}

#[test]
fn faults_are_reported_with_their_position_and_change_nothing() {
    let world = World::start();
    let mut console = world.console();
    world.proxy.write_policies("version: 1\nresources:\n  - name: other\n    tabels: [public.other]\nmore: 1\n");
    let error = console.rows("RELOAD").unwrap_err();
    assert_eq!((error.severity(), error.code()), ("ERROR", "F0000"));
    assert!(
        error.message().contains("policies.yaml:") && error.message().contains(":4:5:")
            || error.detail().contains(":4:5:"),
        "{error:?}"
    );
    let policies = console.rows("SHOW POLICIES").unwrap();
    assert_eq!(policies[0][1], text("scheduler"));
    let mut wire = Wire::login(&world.proxy.address(), "postgres", "postgres");
    assert_eq!(code(&mut wire, WRITE), "LF002", "the old policies are in force");
    world.proxy.write_policies(ticks::POLICIES);
    assert_eq!(console.rows("RELOAD"), Ok(Vec::new()));
}
