//! pgbench runs through the proxy as it does without: every built-in script, every protocol, many clients.

use crate::support::{Options, Via, programs};

const CLIENTS: usize = 50;
const TRANSACTIONS_EACH: usize = 20;

fn no_client_sees_an_error(via: Via) {
    let target = via.start(Options::default());
    programs::run(programs::pgbench(&target.address(), "postgres").args(["-i", "-q", "-s", "2"]));
    for script in ["tpcb-like", "simple-update", "select-only"] {
        for protocol in ["simple", "extended", "prepared"] {
            let output = programs::run(
                programs::pgbench(&target.address(), "postgres")
                    .args(["-n", "-b", script, "-M", protocol, "-j", "2"])
                    .args(["-c", &CLIENTS.to_string(), "-t", &TRANSACTIONS_EACH.to_string()]),
            );
            let report = String::from_utf8(output.stdout).unwrap();
            let total = CLIENTS * TRANSACTIONS_EACH;
            let all = format!("number of transactions actually processed: {total}/{total}");
            assert!(report.contains(&all), "{script}, {protocol}: {report}");
            assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{script}, {protocol}");
        }
    }
}

crate::routes!(no_client_sees_an_error);
