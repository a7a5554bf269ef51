//! The scenarios: their bounds, and the protocol to check, which is the correct one or lacks one protection.
//!
//! Owns the bounds. Must never bound the decision of a step: only the number of actors, and how often something
//! happens.

use crate::judge::{DRAINED, ORDER, OUTCOME, STALE};
use crate::state::{Proxy, Token};

/// The correct protocol, or one that lacks a protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    Right,
    /// A proxy compares the token with the highest that it has seen, and forwards.
    ComparesInMemory,
    /// Mark follows Publish immediately, and checks no process.
    DrainsNobody,
    /// Publish, drain and Mark use one snapshot, taken before the lock of the resource.
    OneSnapshot,
    /// Admit takes neither the lock of the resource nor the row FOR SHARE (FOR KEY SHARE does not block an UPDATE).
    AdmitsWithoutLock,
    /// A missing epoch row counts as a drained epoch.
    AdmitsMissingRow,
    /// A process is identified by its pid alone: cleaning up a dead process deletes the rows of its successor.
    KnowsPidOnly,
    /// A revocation leaves no floor.
    DropsFloors,
    /// The session counts as idle if the last ReadyForQuery reported no transaction.
    TakesFlushForIdle,
    /// A session in a transaction is released even if it has written.
    ReleasesWriters,
    /// After the grace period the rows of other proxies are deleted while their processes live.
    DeletesForeignRows,
    /// A session that raises its own token keeps its process even if it has written.
    KeepsOwnWrites,
    /// Mark only names the resource, and does not check the admissions.
    MarksWhateverIsThere,
    /// Mark does not check prepared transactions.
    IgnoresPrepared,
    /// A reset keeps the generation.
    KeepsGeneration,
    /// A new epoch starts in the first generation, even if processes are admitted.
    RestartsAtGenerationOne,
    /// The guard reads the epoch, and takes no lock of the resource.
    GuardsWithoutLock,
    /// A row is deleted even if the guard holds the lock of its process.
    DeletesUnderGuard,
    /// A row is deleted while its process is being terminated because of it.
    ReleasesWhatIsEnding,
    /// The epoch is lost in a crash of the server.
    ForgetsEpochs,
    /// A first token creates its epoch even if one exists.
    FirstsPastEpochs,
    /// A first token checks whether an epoch exists, and later creates its own regardless of changes in between:
    /// without the lock, and without the table's key.
    FirstsWithoutLock,
    /// A proxy trusts the payload of a notification.
    BelievesNotices,
    /// CommandComplete counts as a commit.
    BelievesCommandComplete,
    /// Clients whose connection is terminated always receive that the transaction was rolled back.
    SaysRolledBack,
}

/// The actors, and how often each event may happen.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    pub name: &'static str,
    pub resources: usize,
    pub clients: &'static [Client],
    /// The tables have the guard's triggers.
    pub guard: bool,
    /// Crashes of proxies, each at most once.
    pub proxy_crashes: u8,
    pub server_may_crash: bool,
    /// Resets of the first resource to the first token.
    pub resets: u8,
    /// Number of times that an operator deletes the epoch row of the first resource by hand.
    pub deletions: u8,
    /// Number of times that a proxy settles an epoch without a session of its own.
    pub helps: u8,
    /// One Query publishes, marks and admits first tokens.
    pub firsts: bool,
    /// Number of notifications by another role, for a token that no session has.
    pub notices: u8,
    /// The members of the judge's SOMETIMES that the scenario must reach.
    pub reaches: &'static [&'static str],
}

/// A session and the actions of its client.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// None: the client bypasses the proxies.
    pub proxy: Option<Proxy>,
    pub token: Token,
    /// The token under which the session continues.
    pub next: Option<Token>,
    pub transactions: u8,
    /// The resources that the client writes by name, and those that it writes through a function, which only the guard
    /// sees. Bit sets.
    pub writes: u8,
    pub hidden: u8,
    /// Executes, and sends Flush: Sync comes with the COMMIT.
    pub flushes: bool,
    /// Tries PREPARE TRANSACTION.
    pub prepares: bool,
    pub pid: u8,
}

pub const NOBODY: Client = Client {
    proxy: None,
    token: 0,
    next: None,
    transactions: 0,
    writes: 0,
    hidden: 0,
    flushes: false,
    prepares: false,
    pid: 0,
};

/// Writes the first resource in one transaction.
const fn client(proxy: Proxy, token: Token) -> Client {
    Client { proxy: Some(proxy), token, transactions: 1, writes: 1, ..NOBODY }
}

/// No faults.
const QUIET: Scenario = Scenario {
    name: "",
    resources: 1,
    clients: &[],
    guard: false,
    proxy_crashes: 0,
    server_may_crash: false,
    resets: 0,
    deletions: 0,
    helps: 0,
    firsts: false,
    notices: 0,
    reaches: &[],
};

/// Three leaders of one resource; each proxy may crash.
const TAKEOVER: Scenario = Scenario {
    name: "takeover",
    clients: &[Client { transactions: 2, ..client(0, 1) }, client(1, 2), client(0, 3)],
    proxy_crashes: 2,
    helps: 1,
    reaches: &[
        "a late reply of an Admit meets a floor",
        "an advance of a proxy that crashed is finished by another",
        "a process is ended whose proxy sleeps",
        "a process is ended in mid-transaction",
        "two proxies publish at once",
        "the last of three leaders commits",
        "a drain meets an idle session",
        "a drain meets a waiting session",
        "a drain meets a busy session",
    ],
    ..QUIET
};

/// The same without crashes.
const QUIET_TAKEOVER: Scenario = Scenario { name: "quiet takeover", proxy_crashes: 0, reaches: &[], ..TAKEOVER };

/// The first leader writes both resources, in one transaction or in two.
const TWO_RESOURCES: Scenario = Scenario {
    name: "two resources",
    resources: 2,
    clients: &[
        Client { transactions: 2, writes: 0b11, ..client(0, 1) },
        client(1, 2),
        Client { writes: 0b10, ..client(0, 3) },
    ],
    reaches: &["a waiting session is released", "two proxies publish at once"],
    ..QUIET
};

/// The second leader has a session with each proxy.
const TWO_SESSIONS: Scenario = Scenario {
    name: "two sessions",
    clients: &[client(0, 1), client(0, 2), client(1, 2)],
    helps: 1,
    reaches: &["a drain meets a busy session"],
    ..QUIET
};

/// Execute and Flush, with Sync at the end only.
const PIPELINE: Scenario = Scenario {
    name: "pipeline",
    clients: &[Client { transactions: 2, flushes: true, ..client(0, 1) }, client(0, 2), client(1, 3)],
    helps: 1,
    reaches: &["a drain meets an idle session", "a drain meets a busy session"],
    ..QUIET
};

/// With the guard: a leader with hidden writes, and one that bypasses the proxies.
const GUARD: Scenario = Scenario {
    name: "guard",
    clients: &[
        Client { transactions: 2, hidden: 1, ..client(0, 1) },
        client(1, 2),
        Client { token: 1, transactions: 1, hidden: 1, ..NOBODY },
    ],
    guard: true,
    helps: 1,
    reaches: &["the guard stops a write that no gate saw", "a guarded transaction keeps a Publish waiting"],
    ..QUIET
};

/// A hidden write is prepared when the session's admission has just been revoked.
const PREPARED: Scenario = Scenario {
    name: "prepared",
    clients: &[Client { transactions: 2, hidden: 1, prepares: true, ..client(0, 1) }, client(1, 2), client(0, 3)],
    guard: true,
    reaches: &["a prepared transaction holds up Mark"],
    ..QUIET
};

/// The token goes back from 3 to 1.
const RESET: Scenario = Scenario {
    name: "reset",
    clients: &[client(0, 3), client(1, 1), client(1, 2)],
    resets: 1,
    reaches: &["a reset lets a lower token write"],
    ..QUIET
};

/// The epoch row is deleted by hand, and the next token is lower.
const DELETED: Scenario = Scenario {
    name: "deleted epoch",
    clients: &[
        Client { transactions: 2, ..client(0, 3) },
        client(1, 1),
        Client { token: 3, transactions: 1, hidden: 1, ..NOBODY },
    ],
    guard: true,
    deletions: 1,
    reaches: &["a new epoch drains what the deleted one admitted"],
    ..QUIET
};

/// After the crash of the server the deposed leader connects again.
const SERVER: Scenario = Scenario {
    name: "crash of the server",
    clients: &[Client { transactions: 2, ..client(0, 1) }, client(1, 2), client(1, 1)],
    server_may_crash: true,
    reaches: &["a crash of the server loses admissions and no epoch"],
    ..QUIET
};

/// The second session may get the pid of the first.
const PIDS: Scenario = Scenario {
    name: "pids",
    clients: &[Client { pid: 1, ..client(0, 1) }, Client { pid: 1, ..client(1, 1) }, client(1, 2)],
    proxy_crashes: 1,
    reaches: &["a drain meets a busy session"],
    ..QUIET
};

/// A leader is elected again, and continues in the same session.
const OWN_TOKEN: Scenario = Scenario {
    name: "own token",
    clients: &[Client { transactions: 2, next: Some(2), ..client(0, 1) }, client(1, 2), client(1, 3)],
    reaches: &["a session raises its own token", "a session has written under another token"],
    ..QUIET
};

/// First tokens, each by a Query that several sessions of a proxy share, or by the ordinary Admit; and their
/// successors.
const FIRSTS: Scenario = Scenario {
    name: "first tokens",
    resources: 2,
    clients: &[
        Client { hidden: 0b10, ..client(0, 1) },
        Client { writes: 0b11, ..client(0, 3) },
        Client { writes: 0b11, ..client(1, 2) },
    ],
    guard: true,
    firsts: true,
    reaches: &[
        "a Query makes the first epochs of two sessions",
        "a first token finds another's",
        "first tokens are asked for beside a Publish",
    ],
    ..QUIET
};

/// Another role sends notifications.
const NOTICES: Scenario = Scenario { name: "notices", clients: &[client(0, 1), client(1, 2)], notices: 2, ..QUIET };

/// Two proxies, two resources, three tokens, the guard and a connection that bypasses the proxies; one proxy may crash.
const TOGETHER: Scenario = Scenario {
    name: "together",
    resources: 2,
    clients: &[
        Client { transactions: 2, writes: 0b11, hidden: 0b10, ..client(0, 1) },
        Client { transactions: 2, next: Some(3), ..client(1, 2) },
        Client { token: 1, transactions: 1, hidden: 0b01, ..NOBODY },
    ],
    guard: true,
    proxy_crashes: 1,
    reaches: &[
        "two proxies publish at once",
        "the guard stops a write that no gate saw",
        "a guarded transaction keeps a Publish waiting",
        "a session raises its own token",
        "a process is ended whose proxy sleeps",
    ],
    ..QUIET
};

/// The scenarios that `make test` checks.
pub const SCENARIOS: [Scenario; 14] = [
    TAKEOVER,
    TWO_RESOURCES,
    TWO_SESSIONS,
    PIPELINE,
    GUARD,
    PREPARED,
    RESET,
    DELETED,
    SERVER,
    PIDS,
    OWN_TOKEN,
    NOTICES,
    FIRSTS,
    TOGETHER,
];

/// The additional scenarios of `make soak`: the last two permit more events.
pub const WIDE: [Scenario; 3] = [
    Scenario { name: "first tokens, with a crash", proxy_crashes: 1, ..FIRSTS },
    Scenario { name: "together, with help", proxy_crashes: 2, server_may_crash: true, helps: 1, ..TOGETHER },
    Scenario { name: "together, with a reset", proxy_crashes: 2, resets: 1, ..TOGETHER },
];

/// Each removed protection, the scenario that detects this, and the property that fails.
pub const BROKEN: [(Variant, Scenario, &str); 25] = [
    (Variant::ComparesInMemory, QUIET_TAKEOVER, ORDER),
    (Variant::DrainsNobody, QUIET_TAKEOVER, ORDER),
    (Variant::DrainsNobody, QUIET_TAKEOVER, DRAINED),
    (Variant::OneSnapshot, QUIET_TAKEOVER, ORDER),
    (Variant::AdmitsWithoutLock, QUIET_TAKEOVER, ORDER),
    (Variant::AdmitsMissingRow, QUIET_TAKEOVER, ORDER),
    (Variant::KnowsPidOnly, PIDS, ORDER),
    (Variant::DropsFloors, QUIET_TAKEOVER, ORDER),
    (Variant::TakesFlushForIdle, PIPELINE, ORDER),
    (Variant::ReleasesWriters, QUIET_TAKEOVER, ORDER),
    (Variant::DeletesForeignRows, QUIET_TAKEOVER, ORDER),
    (Variant::KeepsOwnWrites, OWN_TOKEN, ORDER),
    (Variant::MarksWhateverIsThere, TWO_SESSIONS, ORDER),
    (Variant::IgnoresPrepared, PREPARED, ORDER),
    (Variant::KeepsGeneration, RESET, ORDER),
    (Variant::RestartsAtGenerationOne, DELETED, ORDER),
    (Variant::GuardsWithoutLock, GUARD, ORDER),
    (Variant::DeletesUnderGuard, GUARD, ORDER),
    (Variant::ReleasesWhatIsEnding, QUIET_TAKEOVER, STALE),
    (Variant::ForgetsEpochs, SERVER, ORDER),
    (Variant::FirstsPastEpochs, FIRSTS, ORDER),
    (Variant::FirstsWithoutLock, FIRSTS, ORDER),
    (Variant::BelievesNotices, NOTICES, STALE),
    (Variant::BelievesCommandComplete, PIPELINE, OUTCOME),
    (Variant::SaysRolledBack, QUIET_TAKEOVER, OUTCOME),
];
