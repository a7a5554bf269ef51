//! The processes of the show, and the lines that they print.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::error::Error;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Set for those who must not outlive the show.
pub const STAGED: &str = "DISTRIBUTED_CRON_STAGED";

/// What a process prints.
pub type Output = Lines<BufReader<ChildStdout>>;

/// A process; killed when dropped.
pub struct Actor {
    child: Child,
}

impl Actor {
    /// Starts it, and returns what it prints beside it.
    pub fn start(mut command: Command) -> Result<(Self, Output), Box<dyn Error>> {
        command.env(STAGED, "").stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let output = child.stdout.take().ok_or("no output")?;
        Ok((Actor { child }, BufReader::new(output).lines()))
    }

    pub fn signal(&self, signal: Signal) -> Result<(), Box<dyn Error>> {
        let pid = self.child.id().ok_or("it has ended")?;
        Ok(kill(Pid::from_raw(pid.try_into()?), signal)?)
    }
}

/// What all nodes say, in the order in which it arrives.
pub struct Chorus {
    sender: mpsc::UnboundedSender<String>,
    receiver: mpsc::UnboundedReceiver<String>,
    pub said: Vec<String>,
}

impl Chorus {
    pub fn new() -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        Chorus { sender, receiver, said: Vec::new() }
    }

    /// Listens to one more.
    pub fn join(&self, mut lines: Output) {
        let sender = self.sender.clone();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                sender.send(line).ok();
            }
        });
    }

    /// Waits for the first line from now on that is wanted, and prints all until then.
    pub async fn until(&mut self, what: &str, wanted: impl Fn(&str) -> bool) -> Result<String, Box<dyn Error>> {
        const LIMIT: Duration = Duration::from_secs(30);
        let heard = timeout(LIMIT, async {
            loop {
                let line = self.receiver.recv().await?;
                println!("  {line}");
                self.said.push(line.clone());
                if wanted(&line) {
                    return Some(line);
                }
            }
        });
        heard.await.ok().flatten().ok_or_else(|| format!("nobody said {what:?} in {LIMIT:?}").into())
    }

    /// Listens for this long.
    pub async fn during(&mut self, time: Duration) {
        timeout(time, self.until("", |_| false)).await.ok();
    }
}
