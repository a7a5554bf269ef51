//! The history of a run: each write, the answer to its client, and its place in the server's log. Two judges read it:
//! ours, and the linearizability checker of todc-utils.
//!
//! The exported file has one write per line, as JSON (docs/internals/verification.md).

use crate::support::ticks::out_of_order;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};
use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::{Action, History as Actions};
use todc_utils::specifications::Specification;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The client received a success.
    Ok,
    /// ERROR LF001: the write must never be committed.
    Refused,
    /// FATAL LF001 with `outcome=rolled_back`: the write must never be committed.
    CutOff,
    Unknown,
}

impl Outcome {
    /// ERROR means that nothing was written. If the session was terminated, the reply to a COMMIT may be lost.
    pub fn of(error: Option<tokio_postgres::Error>) -> Self {
        let Some(error) = error else { return Outcome::Ok };
        let Some(error) = error.as_db_error().filter(|error| error.code().code() == "LF001") else {
            return Outcome::Unknown;
        };
        match error.severity() {
            "ERROR" => Outcome::Refused,
            _ if error.detail().is_some_and(|detail| detail.contains("outcome=rolled_back")) => Outcome::CutOff,
            _ => Outcome::Unknown,
        }
    }
}

/// Nanoseconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos().try_into().unwrap()
}

/// A write of one row in its own transaction.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Write {
    pub client: String,
    pub token: i64,
    /// Unique within the history. Begins with the client and the time of the invocation, separated by slashes.
    pub value: String,
    /// In nanoseconds since 1970.
    pub invoke: u64,
    #[serde(rename = "return")]
    pub returned: Option<u64>,
    pub outcome: Outcome,
    /// Its position among the commits, from 0.
    #[serde(default)]
    pub commit: Option<usize>,
}

pub struct History(Vec<Write>);

impl History {
    /// From the clients' diaries, and the committed tokens and values in the order of commits. A write whose client did
    /// not learn its outcome is in the history only if it was committed.
    pub fn new(mut writes: Vec<Write>, committed: Vec<(i64, String)>) -> Self {
        let numbers: HashMap<_, _> =
            writes.iter().enumerate().map(|(number, write)| (write.value.clone(), number)).collect();
        for (commit, (token, value)) in committed.into_iter().enumerate() {
            let commit = Some(commit);
            if let Some(&number) = numbers.get(&value) {
                writes[number].commit = commit;
                continue;
            }
            let mut parts = value.split('/');
            let (client, invoke) = (parts.next().unwrap().to_owned(), parts.next().unwrap().parse().unwrap());
            writes.push(Write { client, token, value, invoke, returned: None, outcome: Outcome::Unknown, commit });
        }
        Self(writes)
    }

    /// Writes the history to a file.
    pub fn export(&self, name: &str) -> PathBuf {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.jsonl"));
        let lines = self.0.iter().map(|write| serde_json::to_string(write).unwrap() + "\n");
        std::fs::write(&path, lines.collect::<String>()).unwrap();
        path
    }

    /// The tokens in the order of commits.
    fn tokens(&self) -> Vec<i64> {
        let mut committed: Vec<_> = self.0.iter().filter_map(|write| Some((write.commit?, write.token))).collect();
        committed.sort_unstable();
        committed.into_iter().map(|(_, token)| token).collect()
    }

    pub fn count_tokens(&self) -> usize {
        self.tokens().into_iter().collect::<HashSet<_>>().len()
    }

    /// Our judge.
    pub fn violations(&self) -> Vec<String> {
        let late = out_of_order(&self.tokens());
        let order = (late > 0).then(|| format!("{late} writes out of order"));
        let wrong = self.0.iter().filter(|write| match write.outcome {
            Outcome::Ok => write.commit.is_none(),
            Outcome::Refused | Outcome::CutOff => write.commit.is_some(),
            Outcome::Unknown => false,
        });
        order.into_iter().chain(wrong.map(|write| format!("wrong outcome: {write:?}"))).collect()
    }

    /// The independent judge.
    pub fn is_linearizable(&self) -> bool {
        let mut writes = self.0.clone();
        writes.sort_unstable_by_key(|write| std::cmp::Reverse(write.commit));
        // A write without an answer took effect before the answer to any later commit. This bound keeps
        // the search short.
        let mut end = u64::MAX;
        for write in &mut writes {
            let returned = *write.returned.get_or_insert(end);
            end = if write.commit.is_some() { end.min(returned) } else { end };
        }
        let mut events: Vec<_> = writes
            .into_iter()
            .enumerate()
            .flat_map(|(number, write)| {
                let call = (write.invoke, false, (number, Action::Call(write.clone())));
                [call, (write.returned.unwrap(), true, (number, Action::Response(write)))]
            })
            .collect();
        // At the same time, calls come first: such writes are concurrent.
        events.sort_by_key(|(time, is_return, _)| (*time, *is_return));
        WGLChecker::<Register>::is_linearizable(Actions::from_actions(
            events.into_iter().map(|event| event.2).collect(),
        ))
    }

    /// Copies with one mistake each. Both judges must find them.
    pub fn falsified(&self) -> [(&str, Self); 3] {
        let acknowledged = |write: &Write| write.outcome == Outcome::Ok && write.commit.is_some();
        let number = self.0.iter().position(acknowledged).expect("an acknowledged write");
        let commit = self.0[number].commit;
        let mut lost = self.0.clone();
        lost[number].commit = None;
        for write in &mut lost {
            write.commit = write.commit.map(|other| other - usize::from(Some(other) > commit));
        }
        let mut refused = self.0.clone();
        refused[number].outcome = Outcome::Refused;
        let takeover = self.tokens().windows(2).position(|pair| pair[0] < pair[1]).expect("two tokens");
        let mut stale = self.0.clone();
        for write in &mut stale {
            write.commit = match write.commit {
                Some(commit) if commit == takeover => Some(takeover + 1),
                Some(commit) if commit == takeover + 1 => Some(takeover),
                commit => commit,
            };
        }
        [("an acknowledged write is lost", lost), ("a refused write is committed", refused), ("a stale write", stale)]
            .map(|(mistake, writes)| (mistake, Self(writes)))
    }
}

impl fmt::Display for History {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [ok, refused, cut_off, unknown] = [Outcome::Ok, Outcome::Refused, Outcome::CutOff, Outcome::Unknown]
            .map(|outcome| self.0.iter().filter(|write| write.outcome == outcome).count());
        write!(
            formatter,
            "{} writes under {} tokens, {ok} acknowledged, {unknown} unacknowledged; {refused} refused as stale, {cut_off} cut off",
            self.tokens().len(),
            self.count_tokens()
        )
    }
}

/// The promise of a fence, as a register that counts its commits. Its state: the highest token, and the next commit.
struct Register;

impl Specification for Register {
    type State = (i64, usize);
    type Operation = Write;

    fn init() -> Self::State {
        (0, 0)
    }

    fn apply(write: &Write, &(highest, next): &Self::State) -> (bool, Self::State) {
        match (write.outcome, write.commit) {
            (Outcome::Ok | Outcome::Unknown, Some(commit)) => {
                (commit == next && write.token >= highest, (write.token, next + 1))
            }
            (Outcome::Refused | Outcome::CutOff | Outcome::Unknown, None) => (true, (highest, next)),
            (Outcome::Ok, None) | (Outcome::Refused | Outcome::CutOff, Some(_)) => (false, (highest, next)),
        }
    }
}

/// Short histories and their verdicts. Our judge ignores times.
#[test]
fn of_short_histories() {
    use Outcome::{CutOff, Ok, Refused, Unknown};
    type Line = (i64, std::ops::Range<u64>, Outcome, Option<usize>);
    let judged = |lines: &[Line]| {
        let write = |(token, time, outcome, commit): &Line| Write {
            client: String::new(),
            token: *token,
            value: String::new(),
            invoke: time.start,
            returned: (*outcome != Unknown).then_some(time.end),
            outcome: *outcome,
            commit: *commit,
        };
        let history = History(lines.iter().map(write).collect());
        (history.violations().is_empty(), history.is_linearizable())
    };
    let (good, bad) = ((true, true), (false, false));
    assert_eq!(judged(&[(1, 0..9, Ok, Some(0)), (2, 1..8, Ok, Some(1)), (1, 2..3, Refused, None)]), good);
    assert_eq!(judged(&[(1, 0..9, Ok, Some(1)), (1, 1..8, Ok, Some(0)), (1, 2..3, CutOff, None)]), good);
    // The first write has no answer, and takes effect late.
    assert_eq!(judged(&[(2, 0..0, Unknown, Some(1)), (1, 1..2, Ok, Some(0)), (3, 3..4, Ok, Some(2))]), good);
    assert_eq!(judged(&[(2, 0..9, Ok, Some(0)), (1, 1..8, Ok, Some(1))]), bad);
    assert_eq!(judged(&[(2, 0..9, Ok, Some(0)), (1, 1..8, Unknown, Some(1))]), bad);
    assert_eq!(judged(&[(1, 0..9, Ok, None)]), bad);
    assert_eq!(judged(&[(1, 0..9, CutOff, Some(0))]), bad);
    // The second commit was acknowledged before the first was invoked.
    assert_eq!(judged(&[(1, 5..9, Ok, Some(0)), (1, 1..4, Ok, Some(1))]), (true, false));
    assert_eq!(judged(&[(1, 5..5, Unknown, Some(0)), (1, 1..4, Ok, Some(1))]), (true, false));
}
