//! `fencegate proxy` reports why it cannot start: wrong usage, a port in use, an unavailable server.

use crate::support::guardian::{Folder, Port};
use crate::support::programs::forget_settings;
use crate::support::proxy::{BINARY, NO_POLICIES};
use crate::support::wire::error_in;
use crate::support::{Options, Stalls, Via, Wire};
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

crate::routes!(proxy only:
    wrong_usage_is_exit_2_and_one_line,
    wrong_configuration_is_exit_2_and_one_line,
    a_port_in_use_is_named,
    a_server_that_is_down_is_reported_at_once,
);

fn wrong_usage_is_exit_2_and_one_line(_: Via) {
    let folder = Folder::new("cli");
    let policies = folder.path().display().to_string();
    let wrong: [&[&str]; 7] = [
        &["--no-such-flag"],
        &["a stray word"],
        &["--listen", "not an address"],
        &["--listen", "127.0.0.1:99999"],
        &["--upstream", "http://127.0.0.1:5432"],
        &["--control", "nonsense"],
        &["--config", "/no/such/file.yaml"],
    ];
    for arguments in wrong {
        assert_exit_2_and_one_line(&run(&[&["--policies", &policies], arguments].concat()), &format!("{arguments:?}"));
    }
}

fn wrong_configuration_is_exit_2_and_one_line(_: Via) {
    let folder = Folder::new("cli");
    let file = folder.join("fencegate.yaml").display().to_string();
    for (text, position) in [("listen: [\n", ""), ("no_such_setting: 1\n", "1:1"), ("listen: 7\n", "1:9")] {
        std::fs::write(&file, text).unwrap();
        let output = run(&["--config", &file]);
        assert_exit_2_and_one_line(&output, text);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains(&format!("{file}:{position}")), "{text:?}: {error}");
    }
    let policies = folder.join("policies");
    std::fs::create_dir(&policies).unwrap();
    std::fs::write(policies.join("wrong.yaml"), "version: 1\nresourses: []\n").unwrap();
    let output = run(&["--policies", &policies.display().to_string()]);
    assert_exit_2_and_one_line(&output, "policies");
    assert!(String::from_utf8_lossy(&output.stderr).contains("wrong.yaml:2:1"), "{output:?}");
}

fn a_port_in_use_is_named(_: Via) {
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = holder.local_addr().unwrap().to_string();
    let folder = Folder::new("cli");
    std::fs::write(folder.join("none.yaml"), NO_POLICIES).unwrap();
    let output = run(&["--listen", &address, "--policies", &folder.path().display().to_string()]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains(&address), "{output:?}");
}

fn a_server_that_is_down_is_reported_at_once(via: Via) {
    let mut target = via.start(Options::default());
    target.login();
    target.postgres.stop();
    let (stalls, begin) = (Stalls::watch(), Instant::now());
    let frames = Wire::connect(&target.address()).unwrap().start(&[("user", "postgres"), ("database", "postgres")], "");
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(5) + stalls.total(), "took {took:?}");
    let error = error_in(&frames).expect("an error, not a silent end");
    assert_eq!((error.severity(), error.code()), ("FATAL", "57P03"));
    target.postgres.start_again();
    assert_eq!(target.login().rows("SELECT 1").unwrap(), [[Some("1".to_owned())]]);
}

/// Sets everything that the proxy needs. The test's flags come last.
fn run(arguments: &[&str]) -> Output {
    let [listen, nobody] = [Port::claim(), Port::claim()];
    // `timeout` kills a proxy that starts.
    let mut command = Command::new("timeout");
    forget_settings(&mut command);
    command.args(["--signal=KILL", "20", BINARY, "proxy"]);
    command.args(["--upstream", &format!("postgres://127.0.0.1:{}", nobody.number())]);
    command.args(["--control", &format!("postgres://postgres@127.0.0.1:{}/", nobody.number())]);
    if !arguments.contains(&"--listen") {
        command.args(["--listen", &format!("127.0.0.1:{}", listen.number())]);
    }
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn assert_exit_2_and_one_line(output: &Output, what: &str) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{what}: {error}");
    assert_eq!(error.trim_end().lines().count(), 1, "{what}: {error}");
    assert_eq!(output.stdout, b"", "{what}");
}
