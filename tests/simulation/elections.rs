//! The simulated etcd, or the leases of the simulated database: one election, whose leader keeps its lease or loses it.
//!
//! Owns tokens: each is higher than all earlier ones. Reads of the leader are linearizable, as in etcd. Followers of
//! the election may be notified late, as if by a lagging member. Requests may fail. In the database the lease is a row,
//! which a failover may lose.

use super::server::Kept;
use super::world::{Chances, Dice, World, moment, pass};
use async_trait::async_trait;
use fencegate_fence::session::Token;
use fencegate_fence::{Elections, Following};
use fencegate_leader::etcd::EtcdError;
use fencegate_leader::{ElectionName, Error};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};

/// Lifetime of a lease that its leader does not renew.
const LEASE: Duration = Duration::from_millis(700);

/// Wait of a request that fails.
const SILENCE: Duration = Duration::from_secs(3);

/// The election.
#[derive(Default)]
pub struct Held {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    revision: Token,
    leader: Option<(Token, Instant)>,
}

impl Held {
    /// The token of the current leader.
    pub fn leader(&self) -> Option<Token> {
        let state = self.state.lock().unwrap();
        state.leader.filter(|(_, until)| Instant::now() < *until).map(|(token, _)| token)
    }

    /// Waits until there is no leader, and then leads. Cancel-safe.
    pub async fn win(&self, world: &World, dice: &mut Dice) -> Token {
        loop {
            if self.leader().is_none() {
                let mut state = self.state.lock().unwrap();
                state.revision += 1 + dice.below(3) as Token;
                let token = state.revision;
                state.leader = Some((token, Instant::now() + LEASE));
                world.judge.elected(token);
                self.changed.notify_waiters();
                world.server.lease(world, token, Kept::Won(LEASE));
                return token;
            }
            self.may_have_changed().await;
        }
    }

    /// Returns when a node has won or resigned, or the current lease would expire. Cancel-safe.
    async fn may_have_changed(&self) {
        let changed = self.changed.notified();
        let until = self.state.lock().unwrap().leader.map(|(_, until)| until).filter(|until| Instant::now() < *until);
        match until {
            Some(until) => timeout_at(until, changed).await.unwrap_or_default(),
            None => changed.await,
        }
    }

    /// Returns false if another node leads, or none.
    pub fn renew(&self, world: &World, token: Token) -> bool {
        let leads = self.leader() == Some(token);
        if leads {
            self.state.lock().unwrap().leader = Some((token, Instant::now() + LEASE));
            world.server.lease(world, token, Kept::Renewed(LEASE));
        }
        leads
    }

    /// Gives up leadership.
    pub fn resign(&self, world: &World, token: Token) {
        if self.leader() == Some(token) {
            world.server.lease(world, token, Kept::Released);
            self.state.lock().unwrap().leader = None;
            self.changed.notify_waiters();
        }
    }
}

/// The election as one proxy sees it.
pub struct Seen {
    world: Arc<World>,
    chances: Chances,
}

impl Seen {
    pub fn new(world: Arc<World>) -> Arc<Self> {
        let chances = Chances::new(&world);
        Arc::new(Seen { world, chances })
    }
}

impl fmt::Debug for Seen {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the simulated election")
    }
}

fn silence() -> EtcdError {
    EtcdError::Unreachable { limit: SILENCE, reason: "a fault".to_owned() }
}

#[async_trait]
impl Elections for Seen {
    async fn leader(&self, _election: &ElectionName) -> Result<Option<Token>, EtcdError> {
        let mut dice = self.chances.next();
        if self.world.fault(&mut dice, self.world.plan.elections) {
            sleep(Duration::from_millis(dice.below(3000) as u64)).await;
            return Err(silence());
        }
        moment(&mut dice).await;
        let leader = self.world.elections.leader();
        moment(&mut dice).await;
        Ok(leader)
    }

    fn follow(&self, _election: &ElectionName) -> Box<dyn Following> {
        Box::new(Follower { world: self.world.clone(), dice: self.chances.next(), reported: None })
    }
}

struct Follower {
    world: Arc<World>,
    dice: Dice,
    reported: Option<Option<Token>>,
}

#[async_trait]
impl Following for Follower {
    async fn next(&mut self) -> Result<Option<Token>, Error> {
        loop {
            let leader = self.world.elections.leader();
            if self.reported != Some(leader) {
                if self.world.fault(&mut self.dice, self.world.plan.elections) {
                    return Err(Error::Unreachable { limit: SILENCE, reason: "a fault".to_owned() });
                }
                self.reported = Some(leader);
                return Ok(leader);
            }
            self.world.elections.may_have_changed().await;
            if self.dice.chance(self.world.plan.elections) {
                pass(&mut self.dice, 1500).await;
            }
        }
    }
}
