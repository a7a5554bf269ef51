//! Leaders that do not notice their loss.

use crate::lead::stage::{ELECTION, ENDLESS, Stage, state, wait_until_dead};
use crate::support::etcd::Etcd;
use crate::support::guardian::{Folder, Program};
use crate::support::programs::run;
use crate::support::{DEADLINE, wait_until};
use etcd_client::Client;
use std::fs;

/// Reports that it runs, and never ends on its own.
const COMMAND: &str = r#"echo $$ >"$1/command.new"; mv "$1/command.new" "$1/command"; while :; do sleep 0.02; done"#;

/// The command of `etcdctl lock` keeps running after the lock is lost.
mod command_that_outlives_its_lock {
    use super::*;

    #[test]
    fn etcdctl_lock_lets_its_command_run_on() {
        let etcd = Etcd::start();
        let folder = Folder::new("lock");
        let mut lock = etcd.etcdctl(&["lock", "/test/lock", "--", "sh", "-c", COMMAND, "sh"]);
        lock.arg(folder.path());
        let words = [lock.get_program()].into_iter().chain(lock.get_args()).map(|word| word.to_owned());
        let command: Vec<_> = ["env".into(), "ETCDCTL_API=3".into()].into_iter().chain(words).collect();
        let mut lock = Program::start(&command, &folder.join("log"), "KILL");
        wait_until("its command runs", DEADLINE, || folder.join("command").exists());
        let command: u32 = fs::read_to_string(folder.join("command")).unwrap().trim().parse().unwrap();

        let keys = run(&mut etcd.etcdctl(&["get", "--prefix", "--keys-only", "/test/lock"])).stdout;
        let key = String::from_utf8(keys).unwrap().trim().to_owned();
        run(&mut etcd.etcdctl(&["lease", "revoke", key.rsplit_once('/').unwrap().1]));
        // Another process takes and releases the lock.
        run(&mut etcd.etcdctl(&["lock", "/test/lock", "true"]));
        assert!(state(command).is_some() && lock.exit_status().is_none(), "it runs on");
        run(std::process::Command::new("kill").args(["-s", "KILL", &command.to_string()]));
        lock.wait();
    }

    #[test]
    fn lead_ends_its_command() {
        let stage = Stage::new();
        let mut lead = stage.lead(ENDLESS, &["--kill-after", "0.1"], COMMAND);
        let command = stage.process("command");
        stage.revoke();
        wait_until_dead(command);
        assert_eq!(lead.wait(), 75);
    }
}

/// etcd is suspended, and the keep-alive stream is silent. The client reports nothing.
mod silent_keep_alive {
    use super::*;
    use crate::election::is_silence;
    use crate::support::Stalls;
    use crate::support::guardian::Port;
    use fencegate_leader::Election;
    use std::time::Duration;
    use tokio::time::timeout;

    const TTL: u64 = 2;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_stream_waits_while_ours_has_lost() {
        let mut etcd = Etcd::start();
        let mut client = Client::connect([etcd.url()], None).await.unwrap();
        let lease = client.lease_grant(TTL as i64, None).await.unwrap().id();
        let (mut keeper, mut answers) = client.lease_keep_alive(lease).await.unwrap();
        keeper.keep_alive().await.unwrap();
        assert!(answers.message().await.unwrap().is_some());

        let election = Election::etcd([etcd.url()]).name(ELECTION).ttl(Duration::from_secs(TTL)).build().unwrap();
        let leadership = election.campaign().await.unwrap();
        let stalls = Stalls::watch();
        etcd.pause();
        keeper.keep_alive().await.unwrap();
        let waiting = tokio::spawn(async move { answers.message().await });
        let loss = timeout(DEADLINE, leadership.lost()).await.unwrap();
        let stalled = stalls.total();
        assert!(is_silence(&loss, stalled), "{loss:?}, stalled for {stalled:?}");
        assert!(!waiting.is_finished(), "the stream has received nothing");
    }

    /// A port without a listener does not respond either.
    #[tokio::test]
    async fn no_candidate_wins_without_a_response() {
        let nobody = Port::claim();
        let url = format!("http://127.0.0.1:{}", nobody.number());
        let election = Election::etcd([url]).name(ELECTION).ttl(Duration::from_secs(TTL)).build().unwrap();
        assert!(timeout(DEADLINE, election.campaign()).await.unwrap().is_err());
    }
}
