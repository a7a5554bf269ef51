//! The number of the transaction that created the node.

use super::{Fence, PAGE};
use crate::support::guardian::{Folder, Port, Program};
use crate::support::page::blocks;
use crate::support::programs::{made_once, python, run};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

struct ZooKeeper {
    // Before the folder: fields are dropped in this order.
    _server: Program,
    _folder: Folder,
    port: Port,
}

impl ZooKeeper {
    /// Does not wait until ZooKeeper answers, because kazoo does.
    fn start() -> Self {
        let (folder, port) = (Folder::new("zookeeper"), Port::claim());
        let settings = format!(
            "clientPort={}\nclientPortAddress=127.0.0.1\ndataDir={}\nadmin.enableServer=false\n",
            port.number(),
            folder.path().display()
        );
        let file = folder.join("zoo.cfg");
        fs::write(&file, settings).unwrap();
        let classes = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar";
        let main = "org.apache.zookeeper.server.ZooKeeperServerMain";
        let command = ["java", "-cp", classes, main, &file.display().to_string()];
        let server = Program::start(&command, &folder.join("log"), "KILL");
        Self { _server: server, _folder: folder, port }
    }

    fn python(&self, program: &str) -> Command {
        let packages = ["kazoo==2.11.0"];
        let kazoo = made_once("kazoo", &packages, |folder| {
            let pip = python().with_file_name("pip");
            run(Command::new(pip).args(["install", "--quiet", "--target"]).arg(folder).args(packages));
        });
        let program = program.replace("127.0.0.1:2181", &format!("127.0.0.1:{}", self.port.number()));
        let mut command = Command::new(python());
        command.env("PYTHONPATH", kazoo).args(["-u", "-c", &program]);
        command
    }

    /// Runs the page's program, extended so that it continues until its input is closed.
    fn candidate(&self) -> Child {
        let programs = blocks(PAGE, "python");
        let program = programs.iter().find(|program| program.contains("kazoo")).expect("a program for ZooKeeper");
        let program = format!("{program}\nprint(path)\nsys.stdin.read()\nzookeeper.stop()");
        self.python(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn leader(&self) -> Leader {
        let mut process = self.candidate();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map(Result::unwrap);
        let Some((token, path)) = lines.next().zip(lines.next()) else { panic!("{:?}", process.wait_with_output()) };
        Leader {
            process: Some(process),
            token: token.parse().unwrap(),
            sequence: path.rsplit_once('-').unwrap().1.to_owned(),
        }
    }
}

/// A leader, which leads until it is dropped.
struct Leader {
    process: Option<Child>,
    token: i64,
    sequence: String,
}

impl Drop for Leader {
    fn drop(&mut self) {
        // Closes the input of the process.
        let _ = self.process.take().map(Child::wait_with_output);
    }
}

#[test]
fn the_program_makes_a_node_and_takes_its_transaction() {
    let (zookeeper, fence) = (ZooKeeper::start(), Fence::start());
    let first = zookeeper.leader();
    let lost = zookeeper.candidate().wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&lost.stderr).into_owned();
    assert_eq!((lost.status.code(), said.as_str()), (Some(1), "another leads\n"));
    let (one, sequence) = (first.token, first.sequence.clone());
    drop(first);
    let second = zookeeper.leader();
    let two = second.token;
    assert!(second.sequence > sequence);
    drop(second);
    fence.follows(one, two);

    // If the parent is deleted, sequence numbers restart, but zxids do not.
    run(&mut zookeeper.python(
        "from kazoo.client import KazooClient\nzookeeper = KazooClient('127.0.0.1:2181')\nzookeeper.start()\n\
         zookeeper.delete('/cron/scheduler/leader')\nzookeeper.stop()",
    ));
    let third = zookeeper.leader();
    assert_eq!(third.sequence, sequence, "the number of another holder");
    fence.follows(two, third.token);
}
