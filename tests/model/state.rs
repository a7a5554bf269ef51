//! The state of the model: epochs, admissions, server processes, sessions of proxies and their advances.
//!
//! Owns the plain values. Must never contain more than a later step or the judge uses: other values only multiply
//! equivalent states.

/// Maximum number of resources, and of proxies.
pub const TWO: usize = 2;
/// Maximum number of sessions.
pub const SESSIONS: usize = 4;

pub type Proxy = usize;
pub type Resource = usize;
pub type Session = usize;
pub type Token = u8;
/// A set of sessions, as bits.
pub type Sessions = u8;

/// The epoch as in the code. `era` counts resets and deletions of the row, independently of the protocol: the protocol
/// must not use it, the judge does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epoch {
    pub generation: u8,
    pub token: Token,
    pub era: u8,
}

impl Epoch {
    /// The order of epochs in the protocol.
    pub fn is_below(self, other: Epoch) -> bool {
        (self.generation, self.token) < (other.generation, other.token)
    }

    /// The order of epochs for the judge.
    pub fn is_older(self, other: Epoch) -> bool {
        (self.era, self.token) < (other.era, other.token)
    }
}

/// A row of `fencegate_state.epoch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EpochRow {
    pub epoch: Epoch,
    pub drained: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The logged tables of the database.
    pub epochs: [Option<EpochRow>; TWO],
    /// The writes of the one prepared transaction.
    pub prepared: Option<[Write; TWO]>,
    pub sessions: [SessionState; SESSIONS],
    pub proxies: [ProxyState; TWO],
    pub budget: Budget,
    /// The era of the first resource's next first epoch.
    pub era: u8,
    /// The last commit of each resource.
    pub newest: [Option<Epoch>; TWO],
    /// The highest token ever published, in any generation.
    pub highest: [Token; TWO],
    pub wrong: Wrong,
}

/// A session: its server process, its admissions, its state in the proxy, and the last reply to its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionState {
    pub process: Process,
    /// The rows of `fencegate_state.admission`.
    pub rows: [Option<Epoch>; TWO],
    /// The uncommitted writes of the open transaction.
    pub writes: [Write; TWO],
    /// The proxy, or the client, has closed the connection.
    pub gone: bool,
    pub at: At,
    /// `SessionFence`: admitted, written, activity.
    pub admitted: [Option<Epoch>; TWO],
    pub written: [bool; TWO],
    pub activity: Activity,
    pub token: Token,
    /// Transactions that the client has not begun yet.
    pub left: u8,
    pub outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Process {
    Unborn,
    Alive,
    /// Terminated by a drain, and marked as ending.
    Ending,
    /// Terminated because it blocks a Publish.
    Blocking,
    Ended,
}

impl Process {
    pub fn lives(self) -> bool {
        matches!(self, Process::Alive | Process::Ending | Process::Blocking)
    }
}

/// A transaction's writes to a resource: none, or the epoch and the guard's lock for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Write {
    None,
    Under(Epoch, Lock),
}

impl Write {
    pub fn holds(self, lock: Lock) -> bool {
        matches!(self, Write::Under(_, held) if held == lock)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lock {
    /// There is no guard.
    None,
    /// The lock of (resource, process): the guard has found an admission.
    OfProcess,
    /// The shared lock of the resource: the guard has found no admission.
    OfResource,
}

/// The position of the session's only message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum At {
    /// No message.
    Rest,
    /// The proxy holds back a write.
    Held(Resource),
    /// An Admit holds the lock of the resource, and has read this epoch.
    Admitting(Resource, Epoch),
    /// The message is part of a Query for first tokens.
    First(Resource),
    /// The Admit has committed, and its reply is under way. Late: a revocation above its epoch has happened since.
    Granted { resource: Resource, epoch: Epoch, late: bool },
    /// The server has received the message but not executed it.
    Forwarded(Statement),
    /// The proof of a commit is under way to the proxy: the server's ReadyForQuery.
    Committed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Statement {
    /// The proxy sees the write: forwarded under this epoch.
    Write(Resource, Epoch),
    /// Only the guard sees the write.
    Hidden(Resource),
    Commit,
    Prepare,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activity {
    Idle,
    Waiting,
    Busy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    Nothing,
    /// LF001 from the proxy.
    Stale,
    /// LF001, LF004 or LF006 from the guard.
    Guarded,
    /// LF003.
    WrittenUnderAnotherToken,
    /// The client's connection has ended.
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProxyState {
    /// The advance. A proxy runs one at a time, for any resource.
    pub advance: Option<Advance>,
    /// A Query for first tokens, one at a time. It continues if the proxy crashes.
    pub firsts: Option<Firsts>,
    /// The highest remembered tokens.
    pub memory: [Token; TWO],
    pub crashed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Advance {
    pub resource: Resource,
    pub to: Epoch,
    /// The session that needs the epoch and keeps its process.
    pub by: Option<Session>,
    pub step: Step,
}

/// A Query for the first tokens of several resources, one session for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Firsts {
    /// The Query holds the locks of these sessions' resources.
    Locked(Sessions),
    /// The Query has found no epoch and no process to drain.
    Looked(Sessions),
}

impl Firsts {
    pub fn sessions(self) -> Sessions {
        let (Firsts::Locked(sessions) | Firsts::Looked(sessions)) = self;
        sessions
    }
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// The holders at the time of the decision, which only an incorrect protocol uses.
    Publish(Sessions),
    Look,
    Revoke,
    Delete(Sessions),
    Terminate,
    Mark,
}

/// The events that may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    pub proxy_crashes: u8,
    pub server: Server,
    pub resets: u8,
    pub deletions: u8,
    pub helps: u8,
    pub notices: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Server {
    MayCrash,
    Runs,
    /// The server has crashed. True: a row of a live process was lost.
    HasCrashed(bool),
}

/// The violations that the judge has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Wrong {
    pub order: bool,
    pub after_drained: bool,
    pub outcome: bool,
    pub stale: bool,
}

impl Wrong {
    pub fn anything(self) -> bool {
        self != Wrong::default()
    }
}
