//! What the model knows of: epochs, admissions, server processes, sessions of proxies and their advances.
//!
//! Owns the plain values. Must never hold more than what a later step or the judge looks at: everything else only makes
//! more states of the same.

/// Resources, and proxies, at most.
pub const TWO: usize = 2;
/// Sessions at most.
pub const SESSIONS: usize = 4;

pub type Proxy = usize;
pub type Resource = usize;
pub type Session = usize;
pub type Token = u8;
/// Sessions, as bits.
pub type Sessions = u8;

/// As in the code; `era` counts resets and deletions of the row, whatever the protocol makes of them: the protocol must not look at
/// it, the judge does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epoch {
    pub generation: u8,
    pub token: Token,
    pub era: u8,
}

impl Epoch {
    /// As the protocol orders epochs.
    pub fn is_below(self, other: Epoch) -> bool {
        (self.generation, self.token) < (other.generation, other.token)
    }

    /// As the judge does.
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
    /// In the database, logged.
    pub epochs: [Option<EpochRow>; TWO],
    /// What was written by the one prepared transaction.
    pub prepared: Option<[Write; TWO]>,
    pub sessions: [SessionState; SESSIONS],
    pub proxies: [ProxyState; TWO],
    pub budget: Budget,
    /// That of the first resource's next first epoch.
    pub era: u8,
    /// The last commit of each resource.
    pub newest: [Option<Epoch>; TWO],
    /// The highest token that was ever published, in any generation.
    pub highest: [Token; TWO],
    pub wrong: Wrong,
}

/// A session: its server process, its admissions, what its proxy knows of it, and what its client was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionState {
    pub process: Process,
    /// The rows of `fencegate_state.admission`.
    pub rows: [Option<Epoch>; TWO],
    /// What is uncommitted in the open transaction.
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
    pub told: Told,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Process {
    Unborn,
    Alive,
    /// Signalled by a drain, and marked as ending.
    Ending,
    /// Signalled because it keeps a Publish waiting.
    InTheWay,
    Ended,
}

impl Process {
    pub fn lives(self) -> bool {
        matches!(self, Process::Alive | Process::Ending | Process::InTheWay)
    }
}

/// What a transaction has written to a resource: nothing, or under which epoch, and what of the guard's it holds for that.
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
    /// That of (resource, process): the guard has found an admission.
    OfProcess,
    /// That of the resource, shared: there was none.
    OfResource,
}

/// Where the one message of a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum At {
    /// There is none.
    Rest,
    /// A write is held back by the proxy.
    Held(Resource),
    /// An Admit has the lock of the resource, and has read this epoch.
    Admitting(Resource, Epoch),
    /// A Query for first tokens has it.
    First(Resource),
    /// The Admit has committed, and its reply is under way. Late: a revocation above has come since.
    Granted { resource: Resource, epoch: Epoch, late: bool },
    /// The server has it, and has not run it.
    Forwarded(Statement),
    /// What proves a commit to the proxy is under way: the server's ReadyForQuery.
    Committed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Statement {
    /// The gate sees it: forwarded under this epoch.
    Write(Resource, Epoch),
    /// Only the guard sees it.
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
pub enum Told {
    Nothing,
    /// ERROR LF001, by the proxy.
    Stale,
    /// The same, LF004 or LF006, by the guard.
    Guarded,
    /// LF003.
    WrittenUnderAnotherToken,
    /// Its connection has ended.
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProxyState {
    /// One at a time, of whatever resource.
    pub advance: Option<Advance>,
    /// A Query for first tokens, one at a time, also when the proxy has crashed meanwhile.
    pub firsts: Option<Firsts>,
    /// The highest tokens by memory.
    pub memory: [Token; TWO],
    pub crashed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Advance {
    pub resource: Resource,
    pub to: Epoch,
    /// The session that needs it, which keeps its process.
    pub by: Option<Session>,
    pub step: Step,
}

/// A Query for the first tokens of several resources, one session for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Firsts {
    /// It has the locks of these sessions' resources.
    Locked(Sessions),
    /// It has seen that there is no epoch, and nobody to drain.
    Looked(Sessions),
}

impl Firsts {
    pub fn sessions(self) -> Sessions {
        let (Firsts::Locked(sessions) | Firsts::Looked(sessions)) = self;
        sessions
    }
}

/// The step that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Decided when these were the holders, which only a wrong protocol goes by.
    Publish(Sessions),
    Look,
    Revoke,
    Delete(Sessions),
    Terminate,
    Mark,
}

/// What may still happen.
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
    /// It has crashed; a row of a living process was lost.
    HasCrashed(bool),
}

/// What the judge has found.
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
